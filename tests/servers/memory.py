"""The folder for the data of a run's servers: in memory, if there is enough of it."""

import os
import re
import shutil
from pathlib import Path

from .server import SHARED_TEMPORARY

_MEMORY = "/dev/shm"
_LEAST_BYTES = 6 * 1024**3
"""The memory that must be free: Postgres takes up to 2 GiB, with its write-ahead log."""


def memory_folder() -> str | None:
    """Return the parent for data that many tests create; None means the usual temporary folder.

    Each test has a database of some 300 files. Ext4 does not reuse the inode of a removed file for
    seconds, and creating a file walks past all of these: that took 40 % of a run's CPU.
    """
    usable = os.access(_MEMORY, os.W_OK) and shutil.disk_usage(_MEMORY).free >= _LEAST_BYTES
    return _MEMORY if usable and _available_bytes() >= _LEAST_BYTES else SHARED_TEMPORARY


def _available_bytes() -> int:
    """Return the memory available without swapping (proc(5)); 0 if unknown."""
    meminfo = Path("/proc/meminfo")
    text = meminfo.read_text() if meminfo.exists() else ""
    available = re.search(r"^MemAvailable:\s+(\d+) kB$", text, re.MULTILINE)
    return int(available[1]) * 1024 if available else 0
