"""The spool: captures on disk, which outlive the process.

    <directory>/<producer>.lock     held as long as one of that producer's processes lives; says
                                    how many bytes are in its folder
    <directory>/<producer>/<sequence>        a capture (`prepared_capture.py`)
    <directory>/<producer>/<sequence>.part   one that is being written
    <directory>/<producer>/report            the last report, if Kafka did not take it
    <directory>/<producer>/report.part       one that is being written

Order: a capture is written, and has its name, before it counts as spooled; it is removed after its
events are acknowledged. A process that finds a folder whose lock is free publishes its captures,
under the old producer's id and sequences; a `.part` there was cut off when its writer died.
"""

import contextlib
import fcntl
import os
from collections import deque
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Final
from uuid import UUID

import structlog

from inference_store.inference.producer_reports import decode as decode_report
from inference_store.platform.metrics import SPOOL_TROUBLE

from .counts import Counts
from .prepared_capture import PreparedCapture, TornFile, decode, encode

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
        try:
            lock = _lock(root / f"{entry.name}{LOCK}")
        except OSError as error:
            _log.warning("the spool cannot be read", action="adopting", error=str(error))
            continue
        if lock is None:
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


def _lock(path: Path) -> int | None:
    """Open and lock a file; None if another process holds it."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(file)
        return None
    return file


_PART = ".part"
_REPORT = "report"


@dataclass(slots=True)
class Room:
    """Bytes of all folders of the spool together: `used` in ours, `others` in those of other
    processes."""

    limit: int
    used: int = 0
    others: Callable[[], int] = int
    _lock: Lock = field(default_factory=Lock)

    def take(self, size: int) -> bool:
        """Reserve bytes; return False if that would exceed the limit."""
        with self._lock:
            if self.used + self.others() + size > self.limit:
                return False
            self.used += size
            return True

    def change(self, by: int) -> None:
        """Count bytes that are on disk already, or that were removed."""
        with self._lock:
            self.used += by


class Folder:
    """One producer's captures on disk; may be shared between threads."""

    def __init__(self, root: Path, counts: Counts, room: Room, lock: int, *, fsync: bool) -> None:
        self.counts = counts
        self._root, self._path = root, root / counts.producer
        self._room, self._fsync = room, fsync
        self._lock_file = lock
        self._lock = Lock()
        self._bytes = 0
        self._waiting = 0
        # The sequences of captures that no task publishes: each is taken once, even if the disk
        # refuses to remove its file afterwards.
        self._unclaimed: deque[int] = deque()

    @property
    def waiting(self) -> int:
        """Captures in the folder, including those being published."""
        return self._waiting

    @property
    def unclaimed(self) -> int:
        """Captures that no task publishes at the moment."""
        return len(self._unclaimed)

    @property
    def is_settled(self) -> bool:
        """True if a dead producer's folder is empty and all its captures are counted; a thread does
        these one after the other."""
        return not self._waiting and self.counts.queued <= 0

    def write(self, prepared: PreparedCapture) -> bool:
        """Store a capture; return False if there is no room, or the disk refuses."""
        raw = encode(prepared)
        if not self._room.take(len(raw)):
            return False
        self._record_size(len(raw))
        path = self._locate(prepared.sequence)
        try:
            self._write(path, raw)
        except OSError as error:
            SPOOL_TROUBLE.inc()
            _log.warning("the spool cannot be written", action="spooling", error=str(error))
            for file in (path.with_suffix(_PART), path):
                self._unlink(file)
            self._change(-len(raw))
            return False
        with self._lock:
            self._waiting += 1
        self._unclaimed.append(prepared.sequence)
        return True

    def _locate(self, sequence: int) -> Path:
        return self._path / f"{sequence:020d}"

    def _write(self, path: Path, raw: bytes) -> None:
        part = path.with_suffix(_PART)
        with part.open("wb") as file:
            file.write(raw)
            if self._fsync:
                file.flush()
                os.fsync(file.fileno())
        part.rename(path)
        if self._fsync:
            _sync_folder(self._path)

    def recover(self, *, own: bool = False) -> None:
        """Count what a dead producer left, and remove incomplete files. `own`: the folder is of our
        own producer, whose process was killed; its captures are counted as seen already, and
        `Counts.go_on` counts those that are missing. Raises OSError; then nothing is counted."""
        files = [(path, path.stat().st_size) for path in sorted(self._path.iterdir())]
        for path, size in files:
            name, _, rest = path.name.partition(".")
            if path.name == _REPORT + _PART:
                self._settle_report(path)
            if not name.isdigit():
                continue
            if not own:
                self.counts.count_spooled(int(name))
            if not rest:
                self._change(size)
                self._waiting += 1
                self._unclaimed.append(int(name))
                continue
            self._unlink(path)
            if not own:
                self._lose()

    def take(self) -> Path | None:
        """Claim a capture that no task publishes yet, the oldest first; None if there is none."""
        try:
            return self._locate(self._unclaimed.popleft())
        except IndexError:
            return None

    def read(self, path: Path) -> PreparedCapture | None:
        """Return the capture; if the file is torn, remove and count it, and return None. Raises
        OSError."""
        try:
            return decode(path.read_bytes())
        except (TornFile, FileNotFoundError):
            size = self._unlink(path)
            self._lose()
            self._forget(size)
            return None

    def remove(self, path: Path) -> None:
        """Remove a capture whose events are acknowledged. If that fails, the process that adopts
        the folder publishes it again."""
        self._forget(self._unlink(path))

    def store_report(self, report: bytes) -> None:
        """Store the last report for the process that adopts the folder."""
        with contextlib.suppress(OSError):
            self._write(self._path / _REPORT, report)

    def read_stored_report(self) -> bytes | None:
        """Return the last report of a producer that could not send it."""
        with contextlib.suppress(OSError):
            return (self._path / _REPORT).read_bytes()
        return None

    def remove_report(self) -> None:
        """Remove the stored report after it was sent."""
        self._unlink(self._path / _REPORT)

    def _settle_report(self, part: Path) -> None:
        """Rename a report that its dead writer left if it is complete; remove it otherwise."""
        try:
            decode_report(part.read_bytes())
            part.rename(self._path / _REPORT)
        except ValueError:
            self._unlink(part)
        except OSError as error:
            _log.warning("the spool cannot be read", action="adopting", error=str(error))

    def close(self) -> None:
        """Unlock the folder; remove an empty folder first, its lock last."""
        with contextlib.suppress(OSError):
            if not self._waiting:
                self._path.rmdir()  # refused if a report is still in it
                (self._root / f"{self.counts.producer}{LOCK}").unlink(missing_ok=True)
        with self._lock:  # a thread may be about to write to it: the descriptor is reused
            os.close(self._lock_file)
            self._lock_file = -1

    def _change(self, by: int) -> None:
        self._room.change(by)
        self._record_size(by)

    def _record_size(self, by: int) -> None:
        """Update the size in the lock file, where other processes read it."""
        with self._lock, contextlib.suppress(OSError):
            self._bytes += by
            os.pwrite(self._lock_file, b"%020d" % self._bytes, 0)

    def _unlink(self, path: Path) -> int:
        """Remove a file and return how many bytes that freed."""
        try:
            size = path.stat().st_size
            path.unlink()
        except FileNotFoundError:
            return 0
        except OSError as error:
            _log.warning("the spool cannot be emptied", action="draining", error=str(error))
            return 0
        return size

    def _lose(self) -> None:
        self.counts.drop("torn")
        _log.warning(
            "a capture in the spool is torn", action="spool_torn", producer=self.counts.producer
        )

    def _forget(self, size: int) -> None:
        self._change(-size)
        with self._lock:
            self._waiting -= 1


def _sync_folder(path: Path) -> None:
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
