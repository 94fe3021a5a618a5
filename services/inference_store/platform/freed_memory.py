"""Freed memory goes back to the system.

glibc has an arena for each thread, and keeps what is freed in it. A process whose threads each
take a turn at much data would grow by all of them.
"""

import asyncio
import ctypes
import os
from functools import cache
from pathlib import Path
from typing import Any, Final

_STATUS: Final = Path("/proc/self/statm")
_GROWTH: Final = 64 << 20
_SECONDS: Final = 10.0


async def keep_releasing(seconds: float = _SECONDS) -> None:
    """Return freed memory to the system as long as the process is much larger than now, until
    cancelled: what a flood took is given back."""
    most = read_resident_bytes() + _GROWTH
    while True:
        await asyncio.sleep(seconds)
        if read_resident_bytes() > most:
            await asyncio.to_thread(release_freed_memory)


def read_resident_bytes() -> int:
    """Return the memory of this process; 0 if the system does not say."""
    try:
        return int(_STATUS.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def release_freed_memory() -> None:
    """Return freed memory to the system, in milliseconds; without glibc this does nothing."""
    trim = _find_trim()
    if trim is not None:
        trim(0)


@cache
def _find_trim() -> Any:
    return getattr(ctypes.CDLL(None), "malloc_trim", None)
