"""The spool: captures on disk, which outlive the process.

    <directory>/<producer>.lock     held as long as one of that producer's processes lives; says
                                    how many bytes are in its folder
    <directory>/<producer>/<segment id>.tar  a segment (`segments.py`), written exchange by exchange
    <directory>/<producer>/report            the last report, if Kafka did not take it
    <directory>/<producer>/report-<id>       what a process published that adopted the folder
    <directory>/<producer>/report.part       one that is being written

Order: an exchange is written before it counts as spooled; its segment is removed after all its
events are acknowledged. A process that finds a folder whose lock is free publishes its segments,
under the old producer's id and sequences; what was being written when its writer died is cut off.
"""

import contextlib
import fcntl
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from io import FileIO
from mmap import ACCESS_READ, mmap
from pathlib import Path
from threading import Lock
from typing import Final
from uuid import UUID

import structlog

from inference_store.inference.producer_reports import decode as decode_report
from inference_store.inference.producer_reports import encode as encode_report
from inference_store.platform.metrics import SPOOL_BYTES, SPOOL_LIMIT, SPOOL_TROUBLE, SPOOLED
from inference_store.platform.settings import CaptureSettings

from .counts import Counts
from .segments import Draft, Segment, read_segment, uuid7

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
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(file)
        return None
    return file


_PART = ".part"
_REPORT = "report"
_TAR = ".tar"


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
    """One producer's segments on disk; may be shared between threads."""

    def __init__(self, root: Path, counts: Counts, room: Room, lock: int, *, fsync: bool) -> None:
        self.counts = counts
        self._root, self._path = root, root / counts.producer
        self._room, self._fsync = room, fsync
        self._lock_file = lock
        self._lock, self._noting = Lock(), Lock()
        self._bytes = 0
        self.waiting = 0
        """Exchanges in the folder, including those being published."""
        # Segments that no task publishes: each is taken once, even if the disk refuses to remove
        # its file afterwards.
        self.unclaimed: deque[Spooled] = deque()

    @property
    def is_settled(self) -> bool:
        """True if a dead producer's folder is empty and all its captures are counted; a thread does
        these one after the other."""
        return not self.waiting and self.counts.queued <= 0

    def open(self, segment: Segment) -> bool:
        """Give a new segment its file; return False if the disk refuses."""
        try:
            segment.file = FileIO(self._path / f"{segment.id}{_TAR}", "xb")
        except OSError as error:
            self._warn(error)
            return False
        return True

    def append(self, segment: Segment, draft: Draft) -> bool:
        """Write an exchange; return False if there is no room, or the disk refuses."""
        size = draft.end - segment.size
        if not self._room.take(size):
            return False
        self._record_size(size)
        try:
            segment.append(draft, fsync=self._fsync)
            if self._fsync and segment.exchanges == 1:
                _sync_folder(self._path)
        except OSError as error:
            self._warn(error)
            self._change(-size)
            return False
        self._add(1)
        return True

    def close_segment(self, segment: Segment) -> None:
        """Close the file of a segment; its captures wait to be published."""
        segment.close()
        path = self._path / f"{segment.id}{_TAR}"
        if segment.exchanges:
            self.unclaimed.append(Spooled(self, path, segment.exchanges))
        else:
            self._unlink(path)

    def write(self, segment: Segment) -> bool:
        """Store a closed segment that is in memory; return False if there is no room, or the disk
        refuses."""
        size, path = len(segment.tar), self._path / f"{segment.id}{_TAR}"
        if not self._room.take(size):
            return False
        self._record_size(size)
        try:
            self._write(path, segment.tar)
        except OSError as error:
            self._warn(error)
            self._unlink(path)
            self._change(-size)
            return False
        self._add(segment.exchanges)
        self.unclaimed.append(Spooled(self, path, segment.exchanges))
        return True

    def _warn(self, error: OSError) -> None:
        SPOOL_TROUBLE.inc()
        _log.warning("the spool cannot be written", action="spooling", error=str(error))

    def _write(self, path: Path, raw: bytes) -> None:
        with path.open("wb") as file:
            file.write(raw)
            if self._fsync:
                file.flush()
                os.fsync(file.fileno())
        if self._fsync:
            _sync_folder(self._path)

    def recover(self, *, own: bool = False) -> None:
        """Count what a dead producer left, and remove what holds no whole exchange. `own`: the
        folder is of our own producer, whose process was killed; its captures are counted as seen
        already, and `Counts.go_on` counts those that are missing. Raises OSError; then nothing is
        counted."""
        paths = [path for path in sorted(self._path.iterdir()) if path.suffix == _TAR]
        found = [(path, path.stat().st_size, _count(path)) for path in paths]
        self._settle_reports()
        for path, size, sequences in found:
            if not sequences:
                _log.warning(
                    "nothing of a segment can be read", action="spool_torn", path=str(path)
                )
                self._unlink(path)
                continue
            for sequence in () if own else sequences:
                self.counts.count_spooled(sequence)
            self._change(size)
            self._add(len(sequences))
            self.unclaimed.append(Spooled(self, path, len(sequences)))

    def lose(self, spooled: "Spooled", count: int) -> None:
        """Count exchanges of a segment that cannot be read any more."""
        self.counts.drop("torn", count)
        path, producer = str(spooled.path), self.counts.producer
        _log.warning(
            "a segment in the spool is torn", action="spool_torn", producer=producer, path=path
        )

    def remove(self, spooled: "Spooled") -> None:
        """Remove a segment whose events are acknowledged. If that fails, the process that adopts
        the folder publishes it again."""
        self._change(-self._unlink(spooled.path))
        self._add(-spooled.exchanges)

    def store_report(self, report: bytes, name: str = _REPORT) -> None:
        """Store the last report for the process that adopts the folder."""
        with contextlib.suppress(OSError):
            # under another name first: a kill never leaves it incomplete
            part = self._path / f"{name}{_PART}"
            self._write(part, report)
            part.rename(self._path / name)

    def note_published(self) -> None:
        """Store what was published of a dead producer, for the process that adopts the folder next:
        it finds nothing of it."""
        with self._noting:
            report = encode_report(self.counts.report(spooled=self.waiting))
            self.store_report(report, f"{_REPORT}-{self.counts.reporter}")

    def _list_reports(self) -> list[Path]:
        with contextlib.suppress(OSError):
            return sorted(path for path in self._path.glob(f"{_REPORT}*") if path.suffix != _PART)
        return []

    def read_stored_report(self) -> bytes | None:
        """Return a report that its process could not send."""
        with contextlib.suppress(OSError):
            return next((path.read_bytes() for path in self._list_reports()), None)
        return None

    def remove_report(self) -> None:
        """Remove that report after it was sent."""
        for path in self._list_reports()[:1]:
            self._unlink(path)

    def _settle_reports(self) -> None:
        """Rename a report that its dead writer left if it is complete; remove it otherwise."""
        for part in list(self._path.glob(f"{_REPORT}*{_PART}")):
            try:
                decode_report(part.read_bytes())
                part.rename(part.with_suffix(""))
            except ValueError:
                self._unlink(part)
            except OSError as error:
                _log.warning("the spool cannot be read", action="adopting", error=str(error))

    def close(self) -> None:
        """Unlock the folder; remove an empty folder first, its lock last."""
        with contextlib.suppress(OSError):
            if not self.waiting:
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
        try:
            size = path.stat().st_size
            path.unlink()
        except FileNotFoundError:
            return 0
        except OSError as error:
            _log.warning("the spool cannot be emptied", action="draining", error=str(error))
            return 0
        return size

    def _add(self, exchanges: int) -> None:
        with self._lock:
            self.waiting += exchanges


def _count(path: Path) -> set[int]:
    with path.open("rb") as file:
        if not os.fstat(file.fileno()).st_size:  # what is empty cannot be mapped
            return set()
        with mmap(file.fileno(), 0, access=ACCESS_READ) as tar:
            return read_segment(tar, count_only=True).sequences


def _sync_folder(path: Path) -> None:
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


@dataclass(frozen=True, slots=True, eq=False)
class Spooled:
    """A segment on disk."""

    folder: Folder
    path: Path
    exchanges: int

    def read(self) -> bytes:
        """Return its bytes; none if the disk does not give them any more."""
        try:
            return self.path.read_bytes()
        except OSError as error:
            _log.error("the spool cannot be read", action="draining", error=str(error))
            return b""


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
        self._settled = set[str]()
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
        """Segments that no task publishes at the moment."""
        return sum(len(folder.unclaimed) for folder in self._list_folders())

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
            if producer in self._settled:  # files of others are left in it
                os.close(lock)
                continue
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
        self._settled.add(settled.counts.producer)
        settled.close()

    def find_folder(self, *, half_full: bool) -> Folder | None:
        """Return the folder that exchanges are written to now; None: they stay in memory.
        `half_full`: memory is half full, or the process ends."""
        return self._own if self._mode == "all" or half_full else None

    def close_segment(self, segment: Segment) -> Segment | None:
        """Close a segment; return it if it is in memory, else it waits in its folder."""
        if segment.file is None:
            segment.close()
            return segment
        assert self._own is not None, "its file is in our folder"
        self._own.close_segment(segment)
        return None

    def write(self, segment: Segment) -> bool:
        """Store a closed segment that is in memory; return whether the spool has it."""
        return self._own is not None and self._own.write(segment)

    def take(self) -> Spooled | None:
        """Claim a segment to publish, first those of dead processes; None if there is none."""
        waiting = (folder.unclaimed for folder in self._list_folders() if folder.unclaimed)
        unclaimed = next(waiting, None)
        return None if unclaimed is None else unclaimed.popleft()

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
