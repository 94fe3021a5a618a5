"""A disk that a test can fill and enlarge: a tmpfs, whose size can change while in use."""

import os
import pwd
import subprocess
import tempfile
from pathlib import Path
from typing import Self

from .versions import MissingServer

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
