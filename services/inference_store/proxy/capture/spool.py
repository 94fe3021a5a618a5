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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock
from typing import Final
from uuid import UUID

import structlog

from inference_store.inference.producer_reports import decode as decode_report
from inference_store.platform.metrics import SPOOL_BYTES, SPOOL_LIMIT, SPOOL_TROUBLE, SPOOLED
from inference_store.platform.settings import CaptureSettings

from .counts import Counts
from .prepare import uuid7
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


@dataclass(frozen=True, slots=True, eq=False)
class Spooled:
    """An exchange on disk."""

    folder: Folder
    path: Path

    @property
    def counts(self) -> Counts:
        """The counts of the producer that captured it."""
        return self.folder.counts


class Spools:
    """The spool, if the settings enable it; otherwise it stores and returns nothing."""

    def __init__(self, settings: CaptureSettings, counts: Counts, lock: int | None) -> None:
        """`lock`: the lock of the existing folder, if there is a spool."""
        self._mode = settings.proxy_spool
        self._lock = lock
        self._root = settings.proxy_spool_directory or Path()
        self._fsync = settings.proxy_spool_fsync == "on"
        self._room = Room(settings.proxy_spool_bytes, others=self._bytes_of_others)
        self._counts = counts
        # Reports on dead producers do not use our producer's id: the capture process after this one
        # counts from the start, and reports on what this one left.
        self._reporter, self._began = str(uuid7()), datetime.now(UTC)
        self._own: Folder | None = None
        self.adopted: tuple[Folder, ...] = ()
        """Folders of dead processes."""
        SPOOL_LIMIT.set(0 if self._mode == "off" else settings.proxy_spool_bytes)
        SPOOL_BYTES.set_function(lambda: self._room.used)
        SPOOLED.set_function(lambda: self.own_waiting + self.adopted_waiting)

    @property
    def is_on(self) -> bool:
        """True if captures may be written to disk."""
        return self._own is not None

    @property
    def own_waiting(self) -> int:
        """Our own captures in the spool."""
        return 0 if self._own is None else self._own.waiting

    @property
    def adopted_waiting(self) -> int:
        """Captures of dead processes."""
        return sum(folder.waiting for folder in self.adopted)

    @property
    def unclaimed(self) -> int:
        """Captures that no task publishes at the moment."""
        return sum(folder.unclaimed for folder in self._list_folders())

    def open(self) -> None:
        """Recover our own folder: a process before this one may have been killed. If the folder
        cannot be read, there is no spool: captures wait only in memory."""
        if self._lock is None:
            return
        own = Folder(self._root, self._counts, self._room, self._lock, fsync=self._fsync)
        try:
            own.recover(own=True)
        except OSError as error:
            SPOOL_TROUBLE.inc()
            SPOOL_LIMIT.set(0)
            _log.error("there is no spool any more", action="spool_off", error=str(error))
            os.close(self._lock)
        else:
            self._own = own

    def adopt(self) -> None:
        """Adopt the folders of dead processes, as far as they can be read. Raises OSError if the
        directory cannot be read."""
        if self._own is None:
            return
        for producer, lock in lock_dead_producers(self._root):
            counts = Counts(producer, self._reporter, self._began)
            folder = Folder(self._root, counts, self._room, lock, fsync=self._fsync)
            try:
                folder.recover()
            except OSError as error:
                folder.close()  # another process may be able to read it
                _log.warning("the spool cannot be read", action="adopting", error=str(error))
                continue
            _log.info(
                "the spool of a producer that is gone is drained",
                action="spool_adopted",
                producer=producer,
                reporter=self._reporter,
                captures=folder.waiting,
            )
            self.adopted = (*self.adopted, folder)

    def close_folder(self, settled: Folder) -> None:
        """Close an empty adopted folder."""
        self.adopted = tuple(folder for folder in self.adopted if folder is not settled)
        settled.close()

    def write(self, prepared: PreparedCapture, *, half_full: bool) -> bool:
        """Store a capture; return whether the spool has it. `half_full`: memory is half full, or
        the process ends."""
        if self._own is None or not (self._mode == "all" or half_full):
            return False
        try:
            return self._own.write(prepared)
        except Exception as error:  # whatever it is: it must not end the thread that decodes
            SPOOL_TROUBLE.inc()
            _log.error("no capture is spooled", action="spooling", error=type(error).__name__)
            return False

    def take(self) -> Spooled | None:
        """Claim a capture to publish, first those of dead processes; None if there is none."""
        for folder in self._list_folders():
            if (path := folder.take()) is not None:
                return Spooled(folder, path)
        return None

    def store_report(self, report: bytes) -> None:
        """Store our last report for the process that adopts the folder."""
        if self._own is not None:
            self._own.store_report(report)

    def close(self) -> None:
        """Close all folders; their contents stay."""
        for folder in self._list_folders():
            folder.close()
        self._own, self.adopted = None, ()

    def _bytes_of_others(self) -> int:
        """Return how many bytes the folders of all other producers hold, living or dead: the limit
        is the directory's."""
        ours = [folder.counts.producer for folder in self._list_folders()]
        total = 0
        # ours cannot be written, either, where the directory cannot be read: that says why
        with contextlib.suppress(OSError):
            for entry in os.scandir(self._root):
                name, lock, _ = entry.name.partition(LOCK)
                # a folder that was removed by hand leaves its lock, which still has its size
                if lock and name not in ours and (self._root / name).is_dir():
                    with contextlib.suppress(OSError, ValueError):
                        total += int(Path(entry.path).read_bytes())
        return total

    def _list_folders(self) -> Sequence[Folder]:
        return self.adopted if self._own is None else (*self.adopted, self._own)
