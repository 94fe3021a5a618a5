"""What this machine has: memory for data, a small disk, and a network that can be cut off."""

import os
import pwd
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Self

from tests.servers.versions import MissingServer

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


# tmpfs counts whole pages.
_PAGE_BYTES = 4096


class SmallDisk:
    """A disk mounted over a folder. A context manager: mounted on entering, gone on leaving."""

    def __init__(self, folder: Path, *, user: str = "", size_bytes: int = 2**30) -> None:
        self.folder = folder
        self._owner = pwd.getpwnam(user).pw_uid if user else os.getuid()
        self._size_bytes = size_bytes

    def __enter__(self) -> Self:
        self.folder.mkdir(exist_ok=True)
        options = f"size={self._size_bytes},uid={self._owner},mode=0700"
        _run("mount", "-t", "tmpfs", "-o", options, "tmpfs", str(self.folder))
        return self

    def __exit__(self, *_: object) -> None:
        _run("umount", str(self.folder))

    def leave(self, free_bytes: int) -> None:
        """Shrink it until `free_bytes` are free."""
        stats = os.statvfs(self.folder)
        used = (stats.f_blocks - stats.f_bfree) * stats.f_frsize
        self._resize(used + free_bytes)

    def grow(self) -> None:
        """Restore its first size."""
        self._resize(self._size_bytes)

    def _resize(self, size_bytes: int) -> None:
        whole = -(-size_bytes // _PAGE_BYTES) * _PAGE_BYTES
        _run("mount", "-o", f"remount,size={whole}", str(self.folder))


def find_small_disk() -> Path:
    """Return where one was mounted for a moment. Raises MissingServer if that is not allowed."""
    with tempfile.TemporaryDirectory() as path:
        try:
            with SmallDisk(Path(path) / "disk", size_bytes=2**20) as disk:
                return disk.folder
        except (OSError, subprocess.CalledProcessError) as exc:
            reason = getattr(exc, "stderr", None) or str(exc)
            raise MissingServer(f"mounting a tmpfs takes root, or sudo: {reason.strip()}") from exc


def _run(*command: str) -> None:
    prefix = [] if os.geteuid() == 0 else ["sudo", "-n"]
    subprocess.run([*prefix, *command], check=True, capture_output=True, text=True)


CUT = ("unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh")
"""Begins a command whose process, and all that it starts, have such a network."""


def list_interfaces(pid: int) -> list[str]:
    """The network interfaces that a process has."""
    lines = Path(f"/proc/{pid}/net/dev").read_text().splitlines()[2:]
    return [line.partition(":")[0].strip() for line in lines]


def write_entering(program: str, pid: int, folder: Path) -> Path:
    """Write a program that runs another one in the network of a process."""
    entering = folder / f"enter-{Path(program).name}"
    entering.write_text(f'#!/bin/sh\nexec nsenter --net=/proc/{pid}/ns/net {program} "$@"\n')
    entering.chmod(0o755)
    return entering


def find_network_cut() -> Path:
    """Where `unshare` made one. Raises MissingServer if that is not allowed."""
    try:
        subprocess.run([*CUT, "true"], check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as exc:
        reason = getattr(exc, "stderr", None) or str(exc)
        raise MissingServer(f"a network namespace takes root: {reason.strip()}") from exc
    return Path(CUT[0])
