"""Locks that say who owns a folder of the spool; each is held as long as one of its producer's
processes lives."""

import contextlib
import fcntl
import os
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final
from uuid import UUID

import structlog

LOCK: Final = ".lock"
_log = structlog.get_logger()


def make_folder(root: Path, producer: str) -> int:
    """Make the folder of a new producer, and return its lock. Raises OSError if that fails."""
    root.mkdir(parents=True, exist_ok=True)
    # The lock first: a folder whose lock is free is a dead producer's.
    lock = _lock(root / f"{producer}{LOCK}")
    if lock is None:
        raise OSError(f"another process holds {producer}{LOCK}")
    try:
        (root / producer).mkdir(mode=0o700)  # it holds what callers sent
    except OSError:
        os.close(lock)
        raise
    return lock


def lock_dead_producers(root: Path) -> Iterator[tuple[str, int]]:
    """Yield the producers whose process is gone and whose folder exists, each with its lock, which
    the caller owns now."""
    for entry in list(os.scandir(root)):
        # leave folders of others alone, like `lost+found`
        if not _is_producer(entry.name) or not entry.is_dir():
            continue
        if (lock := _try_lock(root / f"{entry.name}{LOCK}")) is None:
            continue
        if Path(entry.path).is_dir():
            yield entry.name, lock
        else:  # its owner has just ended and removed the folder
            with contextlib.suppress(OSError):
                (root / f"{entry.name}{LOCK}").unlink(missing_ok=True)
            os.close(lock)


def sum_bytes_of_others(root: Path, ours: Collection[str]) -> int:
    """Return how many bytes the folders of all other producers hold, living or dead."""
    total = 0
    for entry in os.scandir(root):
        name, lock, _ = entry.name.partition(LOCK)
        # a folder that somebody removed by hand leaves its lock, which still says what was in it
        if lock and name not in ours and (root / name).is_dir():
            with contextlib.suppress(OSError, ValueError):
                total += int(Path(entry.path).read_bytes())
    return total


def _is_producer(name: str) -> bool:
    try:
        return str(UUID(name)) == name
    except ValueError:
        return False


def _try_lock(path: Path) -> int | None:
    """Open and lock a file; None if another process holds it, or it cannot be opened."""
    try:
        return _lock(path)
    except OSError as error:
        _log.warning("the spool cannot be read", action="adopting", error=str(error))
        return None


def _lock(path: Path) -> int | None:
    """Open and lock a file; None if another process holds it."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(file)
        return None
    return file
