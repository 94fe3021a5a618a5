"""Whose a folder of the spool is: its lock says so, held as long as one of its producer's processes
lives."""

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


def made_folder(root: Path, producer: str) -> int:
    """Make the folder of a producer that begins; its lock. Raises OSError where it cannot be."""
    root.mkdir(parents=True, exist_ok=True)
    # The lock first: a folder whose lock is free is a dead producer's.
    lock = _locked(root / f"{producer}{LOCK}")
    if lock is None:
        raise OSError(f"another process holds {producer}{LOCK}")
    try:
        (root / producer).mkdir(mode=0o700)  # it holds what callers sent
    except OSError:
        os.close(lock)
        raise
    return lock


def dead_producers(root: Path) -> Iterator[tuple[str, int]]:
    """Producers whose process is gone and whose folder is there, each with its lock, now ours."""
    for entry in list(os.scandir(root)):
        # another's folder, `lost+found`, is left alone
        if not _is_producer(entry.name) or not entry.is_dir():
            continue
        if (lock := _free(root / f"{entry.name}{LOCK}")) is None:
            continue
        if Path(entry.path).is_dir():
            yield entry.name, lock
        else:  # its owner has just gone, and took the folder along
            with contextlib.suppress(OSError):
                (root / f"{entry.name}{LOCK}").unlink(missing_ok=True)
            os.close(lock)


def bytes_of_others(root: Path, ours: Collection[str]) -> int:
    """Bytes in the folders of all other producers, living or dead."""
    found = 0
    for entry in os.scandir(root):
        name, lock, _ = entry.name.partition(LOCK)
        # of a folder that somebody removed by hand the lock is left, and says what was in it
        if lock and name not in ours and (root / name).is_dir():
            with contextlib.suppress(OSError, ValueError):
                found += int(Path(entry.path).read_bytes())
    return found


def _is_producer(name: str) -> bool:
    try:
        return str(UUID(name)) == name
    except ValueError:
        return False


def _free(path: Path) -> int | None:
    """The file, locked; None where another process holds it, or it cannot be opened."""
    try:
        return _locked(path)
    except OSError as error:
        _log.warning("the spool cannot be read", action="adopting", error=str(error))
        return None


def _locked(path: Path) -> int | None:
    """The file, locked; None where another process holds it."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(file)
        return None
    return file
