"""Wait for a condition until a deadline."""

import time
from collections.abc import Callable


def wait_until(check: Callable[[], bool], *, seconds: float, what: str) -> None:
    """Return as soon as `check()` is true. Raises TimeoutError, naming `what`, after `seconds`."""
    deadline = time.monotonic() + seconds
    while not check():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {seconds:g} s")
        time.sleep(0.05)
