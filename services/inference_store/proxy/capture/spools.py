"""All folders of the spool: this process's own, and those of processes that are gone."""

from collections.abc import Sequence
from pathlib import Path

import structlog

from inference_store.store.metrics import SPOOL_BYTES, SPOOL_LIMIT, SPOOLED
from inference_store.store.settings import CaptureSettings

from .counts import Counts
from .deliveries import Spooled
from .prepared import Prepared
from .spool import Folder, Room, bytes_of_others, dead_producers

_log = structlog.get_logger()


class Spools:
    """The spool, where the settings ask for one; else it takes and gives nothing."""

    def __init__(self, settings: CaptureSettings, counts: Counts, lock: int | None) -> None:
        """`lock`: of the folder that is made already, where there is a spool."""
        self._mode = settings.proxy_spool
        self._lock = lock
        self._root = settings.proxy_spool_directory or Path()
        self._fsync = settings.proxy_spool_fsync == "on"
        self._room = Room(settings.proxy_spool_bytes, others=self._bytes_of_others)
        self._counts = counts
        self._own: Folder | None = None
        self._adopted: tuple[Folder, ...] = ()
        SPOOL_LIMIT.set(0 if self._mode == "off" else settings.proxy_spool_bytes)
        SPOOL_BYTES.set_function(lambda: self._room.used)
        SPOOLED.set_function(lambda: self.own_waiting + self.adopted_waiting)

    @property
    def is_on(self) -> bool:
        """Whether captures may go to disk."""
        return self._own is not None

    @property
    def adopted(self) -> Sequence[Folder]:
        """Folders of processes that are gone."""
        return self._adopted

    @property
    def own_waiting(self) -> int:
        """Our own captures in it."""
        return 0 if self._own is None else self._own.waiting

    @property
    def adopted_waiting(self) -> int:
        """Captures of processes that are gone."""
        return sum(folder.waiting for folder in self._adopted)

    @property
    def untaken(self) -> int:
        """Captures that nobody publishes at the moment."""
        return sum(folder.untaken for folder in self._all())

    def open(self) -> None:
        """Look through our own folder: a process before us may have been killed. Raises OSError."""
        if self._lock is not None:
            own = Folder(self._root, self._counts, self._room, self._lock, fsync=self._fsync)
            own.look_through(own=True)
            self._own = own

    def adopt(self) -> None:
        """Take over the folders of processes that are gone. Raises OSError."""
        if self._own is None:
            return
        for producer, lock in dead_producers(self._root):
            counts = Counts(producer, self._counts.producer, self._counts.booted_at)
            folder = Folder(self._root, counts, self._room, lock, fsync=self._fsync)
            folder.look_through()
            _log.info(
                "the spool of a producer that is gone is drained",
                action="spool_adopted",
                producer=producer,
                captures=folder.waiting,
            )
            self._adopted = (*self._adopted, folder)

    def let_go(self, folder: Folder) -> None:
        """A folder is empty."""
        self._adopted = tuple(each for each in self._adopted if each is not folder)
        folder.close()

    def write(self, prepared: Prepared, *, half_full: bool) -> bool:
        """Whether the spool has taken a capture. `half_full`: memory is, or the end is near."""
        wanted = self._mode == "all" or half_full
        return wanted and self._own is not None and self._own.write(prepared)

    def take(self) -> Spooled | None:
        """A capture to publish: those of the dead first."""
        for folder in self._all():
            if folder.untaken and (path := folder.take()) is not None:
                return Spooled(folder, path)
        return None

    def keep_report(self, report: bytes) -> None:
        """Keep our last report for whoever comes next."""
        if self._own is not None:
            self._own.keep_report(report)

    def close(self) -> None:
        """Let go of all folders; what is in them stays."""
        for folder in self._all():
            folder.close()
        self._own, self._adopted = None, ()

    def _bytes_of_others(self) -> int:
        """In folders of other processes: the limit is the directory's."""
        try:
            return bytes_of_others(self._root, [each.counts.producer for each in self._all()])
        except OSError:  # ours cannot be written then, either: that says why
            return 0

    def _all(self) -> Sequence[Folder]:
        return self._adopted if self._own is None else (*self._adopted, self._own)
