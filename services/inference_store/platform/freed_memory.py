"""Freed memory goes back to the system.

glibc has an arena for each thread, and keeps what is freed in it. A process whose threads each
take a turn at much data would grow by all of them.
"""

import ctypes
from functools import cache
from typing import Any


def release_freed_memory() -> None:
    """Return freed memory to the system, in milliseconds; without glibc this does nothing."""
    trim = _find_trim()
    if trim is not None:
        trim(0)


@cache
def _find_trim() -> Any:
    return getattr(ctypes.CDLL(None), "malloc_trim", None)
