"""Wait for a condition until a deadline."""

import time
from collections.abc import Callable


class WaitExpired(TimeoutError):
    """A condition did not come true before its deadline."""


def wait_until(check: Callable[[], bool], *, seconds: float, what: str) -> None:
    """Return as soon as `check()` is true. Raises WaitExpired, naming `what`, after `seconds`."""
    deadline = time.monotonic() + seconds
    while not check():
        if time.monotonic() > deadline:
            raise WaitExpired(f"{what}: not within {seconds:g} s")
        time.sleep(0.05)
