"""The spool: captures on disk, which outlive the process.

    <directory>/<producer>.lock     held as long as one of that producer's processes lives; says
                                    how many bytes are in its folder
    <directory>/<producer>/<sequence>        a capture (`prepared.py`)
    <directory>/<producer>/<sequence>.part   one that is being written
    <directory>/<producer>/report            the last report, where Kafka did not take it
    <directory>/<producer>/report.part       one that is being written

Order: a capture is written, and has its name, before it counts as spooled; it is removed after
its events are acknowledged. Whoever finds a folder whose lock is free publishes what is in it,
under the old producer's id and sequences; a `.part` there was torn by the death of its writer.
"""

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock

import structlog

from inference_store.inference.producer_reports import decode as decode_report
from inference_store.platform.metrics import SPOOL_TROUBLE

from .counts import Counts
from .folder_locks import LOCK
from .prepared import Prepared, Torn, decode, encode

_PART = ".part"
_REPORT = "report"
_log = structlog.get_logger()


@dataclass(slots=True)
class Room:
    """Bytes of all folders of the spool together: `used` in ours, `others` in those of other
    processes."""

    limit: int
    used: int = 0
    others: Callable[[], int] = int
    _lock: Lock = field(default_factory=Lock)

    def take(self, size: int) -> bool:
        """Reserve; False where that would be over the limit."""
        with self._lock:
            if self.used + self.others() + size > self.limit:
                return False
            self.used += size
            return True

    def change(self, by: int) -> None:
        """Count what is there already, or what is gone."""
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
        self._taken: set[str] = set()
        # settled, but the disk does not let them go
        self._stuck: set[str] = set()
        self._names: Iterator[str] = iter(())

    @property
    def waiting(self) -> int:
        """Captures in it, those being published included."""
        return self._waiting

    @property
    def untaken(self) -> int:
        """Captures that nobody publishes at the moment."""
        return self._waiting - len(self._taken)

    @property
    def is_settled(self) -> bool:
        """Of a dead producer: nothing is in it, and all that was is counted; a thread does the one
        after the other."""
        return not self._waiting and self.counts.queued <= 0

    def write(self, prepared: Prepared) -> bool:
        """Keep a capture; False where there is no room, or the disk refuses."""
        raw = encode(prepared)
        if not self._room.take(len(raw)):
            return False
        self._say(len(raw))
        path = self._path / f"{prepared.sequence:020d}"
        try:
            self._write(path, raw)
        except OSError as error:
            SPOOL_TROUBLE.inc()
            _log.warning("the spool cannot be written", action="spooling", error=str(error))
            for each in (path.with_suffix(_PART), path):
                self._unlink(each)
            self._change(-len(raw))
            return False
        with self._lock:
            self._waiting += 1
            self._stuck.discard(path.name)
        return True

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

    def look_through(self, *, own: bool = False) -> None:
        """Count what a dead producer left, and remove what it had not written whole. `own`: what
        our own process left that was killed; those are counted as seen already, and `Counts.go_on`
        counts those that are not here. Raises OSError; then nothing is counted."""
        found = [(path, path.stat().st_size) for path in list(self._path.iterdir())]
        for path, size in found:
            name, _, rest = path.name.partition(".")
            if path.name == _REPORT + _PART:
                self._settle_report(path)
            if not name.isdigit():
                continue
            if not own:
                self.counts.found(int(name))
            if not rest:
                self._change(size)
                self._waiting += 1
                continue
            self._unlink(path)
            if not own:
                self._lose()

    def take(self) -> Path | None:
        """A capture that nobody publishes yet; None: there is none. Raises OSError."""
        with self._lock:
            if not self.untaken:
                return None
            name = self._next() or self._next(anew=True)
            if name is None:  # somebody else has removed them
                for _ in range(self.untaken):
                    self.counts.drop("torn")
                self._waiting = len(self._taken)
                return None
            self._taken.add(name)
            return self._path / name

    def _next(self, *, anew: bool = False) -> str | None:
        """On from where it stopped, or from the beginning."""
        if anew:
            # Not those in hand: they may be gone when it is their turn.
            names: list[str] = []
            with contextlib.suppress(FileNotFoundError):  # the folder, too, may be removed
                names = os.listdir(self._path)
            gone = self._taken | self._stuck
            self._names = iter([name for name in names if name.isdigit() and name not in gone])
        return next(self._names, None)

    def read(self, path: Path) -> Prepared | None:
        """The capture; None, and it is gone and counted, where the file is torn. Raises OSError."""
        try:
            return decode(path.read_bytes())
        except (Torn, FileNotFoundError):
            size = self._unlink(path)
            self._lose()
            self._forget(path, size)
            return None

    def remove(self, path: Path) -> None:
        """Its events are acknowledged. Where the disk refuses, it is published again one day."""
        self._forget(path, self._unlink(path))

    def keep_report(self, report: bytes) -> None:
        """Keep the last report for whoever comes next."""
        with contextlib.suppress(OSError):
            self._write(self._path / _REPORT, report)

    def kept_report(self) -> bytes | None:
        """The last report of a producer that could not send it."""
        with contextlib.suppress(OSError):
            return (self._path / _REPORT).read_bytes()
        return None

    def forget_report(self) -> None:
        """It was sent."""
        self._unlink(self._path / _REPORT)

    def _settle_report(self, part: Path) -> None:
        """One that its writer's death left: whole, it is the last report; else it is of no use."""
        try:
            decode_report(part.read_bytes())
            part.rename(self._path / _REPORT)
        except ValueError:
            self._unlink(part)
        except OSError as error:
            _log.warning("the spool cannot be read", action="adopting", error=str(error))

    def close(self) -> None:
        """Let go; an empty folder is removed, the lock last."""
        with contextlib.suppress(OSError):
            if not self._waiting:
                self._path.rmdir()  # refused where a report still lies in it
                (self._root / f"{self.counts.producer}{LOCK}").unlink(missing_ok=True)
        with self._lock:  # a thread may be about to write there: the number is given anew
            os.close(self._lock_file)
            self._lock_file = -1

    def _change(self, by: int) -> None:
        self._room.change(by)
        self._say(by)

    def _say(self, by: int) -> None:
        """Bytes came or went: other processes read here how many there are."""
        with self._lock, contextlib.suppress(OSError):
            self._bytes += by
            os.pwrite(self._lock_file, b"%020d" % self._bytes, 0)

    def _unlink(self, path: Path) -> int:
        """Remove a file; how many bytes are gone. One that stays is not taken any more."""
        try:
            size = path.stat().st_size
            path.unlink()
        except FileNotFoundError:
            return 0
        except OSError as error:
            _log.warning("the spool cannot be emptied", action="draining", error=str(error))
            self._stuck.add(path.name)
            return 0
        return size

    def _lose(self) -> None:
        self.counts.drop("torn")
        _log.warning(
            "a capture in the spool is torn", action="spool_torn", producer=self.counts.producer
        )

    def _forget(self, path: Path, size: int) -> None:
        self._change(-size)
        with self._lock:
            self._taken.discard(path.name)
            self._waiting -= 1


def _sync_folder(path: Path) -> None:
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
