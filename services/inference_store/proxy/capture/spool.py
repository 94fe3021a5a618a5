"""The spool: captures on disk, which outlive the process.

    <directory>/<producer>.lock     held as long as one of that producer's processes lives; has its
                                    numbers (`counts.py`)
    <directory>/<producer>/<segment id>.tar  a segment (`segments.py`), written exchange by exchange

Order: an exchange is written before it counts as spooled; its segment is removed after all its
events are acknowledged, and the folder after the last report. A process that finds a lock that is
free goes on as that producer: it publishes its segments and reports on it, under its id and
numbers. What was being written when its writer died is cut off.
"""

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from io import FileIO
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Final
from uuid import UUID

import structlog

from inference_store.platform.metrics import SPOOL_BYTES, SPOOL_LIMIT, SPOOL_TROUBLE, SPOOLED
from inference_store.platform.settings import CaptureSettings

from .counts import CounterId, Counts, read_values
from .segments import Segment, read_segment

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


_TAR = ".tar"


class Folder:
    """One producer's segments on disk; may be shared between threads."""

    def __init__(
        self, root: Path, counts: Counts, has_room: Callable[[int], bool], *, fsync: bool
    ) -> None:
        """`counts`: with the folder's lock; `has_room` says whether so many bytes more fit."""
        self.counts = counts
        self._root, self._path = root, root / counts.producer
        self._has_room, self._fsync = has_room, fsync

    def open(self, segment: Segment) -> bool:
        """Give a segment its file; return False if the disk refuses."""
        try:
            segment.file = FileIO(self._path / f"{segment.id}{_TAR}", "xb")
        except OSError as error:
            self._warn(error)
            return False
        return True

    def append(self, segment: Segment, raw: bytes, exchanges: int = 1) -> bool:
        """Write exchanges to the file of a segment; return False if there is no room, or the disk
        refuses: the file is as it was then."""
        file = segment.file
        assert file is not None, "it was opened"
        if not self._has_room(len(raw)):
            return False
        self.counts.spool(0, len(raw))
        self.counts.store()
        start = file.tell()
        try:
            rest = memoryview(raw)
            while rest:
                rest = rest[file.write(rest) :]
            if self._fsync:
                os.fsync(file.fileno())
                if not start:
                    _sync_folder(self._path)
        except OSError as error:
            self._warn(error)
            file.seek(start)
            with contextlib.suppress(OSError):
                file.truncate()
            self.counts.spool(0, -len(raw))
            return False
        self.counts.spool(exchanges, 0)
        return True

    def close_segment(self, segment: Segment) -> "Spooled | None":
        """Close the file of a segment, and return what is to be published; None if it is empty."""
        assert segment.file is not None, "it was opened"
        path, is_empty = self._path / f"{segment.id}{_TAR}", not segment.file.tell()
        segment.close()
        if is_empty:
            self._unlink(path)
        return None if is_empty else Spooled(self, path, segment.exchanges)

    def _warn(self, error: OSError) -> None:
        SPOOL_TROUBLE.inc()
        _log.warning("the spool cannot be written", action="spooling", error=str(error))

    def recover(self) -> "tuple[list[Spooled], set[int]]":
        """Return what a killed process left, and the numbers of its exchanges; remove what holds no
        whole one. Raises OSError; then nothing is counted as spooled."""
        values, sequences, spooled = self.counts.values, set[int](), list[Spooled]()
        values[CounterId.SPOOLED] = values[CounterId.SPOOL_BYTES] = 0
        paths = [path for path in sorted(self._path.iterdir()) if path.suffix == _TAR]
        for path, size, found in [(path, path.stat().st_size, _count(path)) for path in paths]:
            if not found:
                _log.warning(
                    "nothing of a segment can be read", action="spool_torn", path=str(path)
                )
                self._unlink(path)
                continue
            self.counts.spool(len(found), size)
            sequences |= found
            spooled.append(Spooled(self, path, len(found)))
        return spooled, sequences

    def remove(self, spooled: "Spooled") -> None:
        """Remove a segment whose events are acknowledged. If that fails, the process that adopts
        the folder publishes it again."""
        self.counts.spool(-spooled.exchanges, -self._unlink(spooled.path))

    def close(self, *, is_settled: bool = False) -> None:
        """Unlock the folder. If nothing is left to say of its producer, remove it first, its lock
        last."""
        if is_settled:
            with contextlib.suppress(OSError):
                # refused if files of others are in it: the lock keeps its numbers then
                self._path.rmdir()
                (self._root / f"{self.counts.producer}{LOCK}").unlink(missing_ok=True)
        self.counts.close()

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

    def __init__(self, settings: CaptureSettings, counts: Counts) -> None:
        """`counts`: with the lock of the existing folder, if there is a spool."""
        self._mode = settings.proxy_spool
        self._root = settings.proxy_spool_directory or Path()
        self._fsync = settings.proxy_spool_fsync == "on"
        self._limit = settings.proxy_spool_bytes
        self._counts = counts
        self.own: Folder | None = None
        """None: captures wait only in memory."""
        self.adopted: tuple[Folder, ...] = ()
        """Folders of dead processes."""
        self._settled = set[str]()
        SPOOL_LIMIT.set(0 if self._mode == "off" else self._limit)
        SPOOL_BYTES.set_function(lambda: self._sum(CounterId.SPOOL_BYTES))
        SPOOLED.set_function(lambda: self._sum(CounterId.SPOOLED))

    def open(self) -> "list[Spooled]":
        """Open our own folder, and return what a process before this one left: it may have been
        killed. If the folder cannot be read, there is no spool."""
        if self._counts.file < 0:
            return []
        own = Folder(self._root, self._counts, self._has_room, fsync=self._fsync)
        try:
            spooled, _ = own.recover()
        except OSError as error:
            SPOOL_TROUBLE.inc()
            SPOOL_LIMIT.set(0)
            _log.error("there is no spool any more", action="spool_off", error=str(error))
            own.close()
            return []
        self.own = own
        return spooled

    def adopt(self) -> "list[Spooled]":
        """Adopt the folders of dead processes, as far as they can be read, and return what is in
        them. Raises OSError if the directory cannot be read."""
        adopted: list[Spooled] = []
        for producer, lock in () if self.own is None else lock_dead_producers(self._root):
            if producer in self._settled:  # files of others are left in it
                os.close(lock)
                continue
            try:
                counts = Counts.stored(producer, lock)
                folder = Folder(self._root, counts, self._has_room, fsync=self._fsync)
                spooled, sequences = folder.recover()
            except OSError as error:
                os.close(lock)  # another process may be able to read it
                _log.warning("the spool cannot be read", action="adopting", error=str(error))
                continue
            counts.inherit(sequences)
            counts.store()
            _log.info(
                "the spool of a producer that is gone is drained",
                action="spool_adopted",
                producer=producer,
                captures=len(sequences),
            )
            self.adopted = (*self.adopted, folder)
            adopted += spooled
        return adopted

    def close_adopted(self, settled: Folder) -> None:
        """Close an adopted folder of which all is reported."""
        self.adopted = tuple(folder for folder in self.adopted if folder is not settled)
        self._settled.add(settled.counts.producer)
        settled.close(is_settled=True)

    @property
    def has_queued(self) -> bool:
        """True if exchanges of ours, or in an adopted folder, have no outcome yet."""
        return any(counts.queued > 0 for counts in self._list_counts())

    def find_folder(self, *, half_full: bool) -> Folder | None:
        """Return the folder that exchanges are written to now; None: they stay in memory.
        `half_full`: memory is half full, or the process ends."""
        return self.own if self._mode == "all" or half_full else None

    def close_segment(self, segment: Segment) -> "Segment | Spooled | None":
        """Close a segment, and return what is to be published."""
        if segment.file is None:
            segment.close()
            return segment
        assert self.own is not None, "its file is in our folder"
        return self.own.close_segment(segment)

    def write(self, segment: Segment) -> "Spooled | None":
        """Store a closed segment that is in memory; None if the spool does not take it."""
        if self.own is None or not self.own.open(segment):
            return None
        self.own.append(segment, segment.tar, segment.exchanges)
        return self.own.close_segment(segment)

    def close(self, *, is_reported: bool) -> None:
        """Close all folders; their captures stay. `is_reported`: our final report was sent."""
        for folder in self.adopted:
            folder.close()
        if self.own is not None:
            spooled = self._counts.values[CounterId.SPOOLED]
            self.own.close(is_settled=is_reported and not spooled)
        self.own, self.adopted = None, ()

    def _sum(self, number: CounterId) -> int:
        return sum(counts.values[number] for counts in self._list_counts())

    def _has_room(self, size: int) -> bool:
        used = self._sum(CounterId.SPOOL_BYTES) + self._count_bytes_of_others()
        return used + size <= self._limit

    def _count_bytes_of_others(self) -> int:
        """Return how many bytes the folders of all other producers hold, living or dead: the limit
        is the directory's."""
        ours = [counts.producer for counts in self._list_counts()]
        total = 0
        # ours cannot be written, either, where the directory cannot be read: that says why
        with contextlib.suppress(OSError):
            for entry in os.scandir(self._root):
                name, lock, _ = entry.name.partition(LOCK)
                # a folder that was removed by hand leaves its lock, which still has its size
                if lock and name not in ours and (self._root / name).is_dir():
                    with contextlib.suppress(OSError):
                        values = read_values(Path(entry.path).read_bytes())
                        total += values[CounterId.SPOOL_BYTES]
        return total

    def _list_counts(self) -> list[Counts]:
        return [self._counts, *(folder.counts for folder in self.adopted)]
