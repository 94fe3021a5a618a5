"""All folders of the spool: this process's own, and those of processes that are gone."""

import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import structlog

from inference_store.platform.metrics import SPOOL_BYTES, SPOOL_LIMIT, SPOOL_TROUBLE, SPOOLED
from inference_store.platform.settings import CaptureSettings

from .counts import Counts
from .deliveries import Spooled
from .folder_locks import bytes_of_others, dead_producers
from .prepared import Prepared
from .spool import Folder, Room
from .uuid7 import uuid7

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
        # Of the dead. Not our producer's id: the capture process after us begins to count anew,
        # and what it says is about what we left.
        self._reporter, self._began = str(uuid7()), datetime.now(UTC)
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
        """Look through our own folder: a process before us may have been killed. Without a folder
        that can be read there is no spool: captures wait in memory alone."""
        if self._lock is None:
            return
        own = Folder(self._root, self._counts, self._room, self._lock, fsync=self._fsync)
        try:
            own.look_through(own=True)
        except OSError as error:
            SPOOL_TROUBLE.inc()
            SPOOL_LIMIT.set(0)
            _log.error("there is no spool any more", action="spool_off", error=str(error))
            os.close(self._lock)
        else:
            self._own = own

    def adopt(self) -> None:
        """Take over the folders of processes that are gone, as far as they can be read. Raises
        OSError where the directory cannot."""
        if self._own is None:
            return
        for producer, lock in dead_producers(self._root):
            counts = Counts(producer, self._reporter, self._began)
            folder = Folder(self._root, counts, self._room, lock, fsync=self._fsync)
            try:
                folder.look_through()
            except OSError as error:
                folder.close()  # somebody may have more luck with it
                _log.warning("the spool cannot be read", action="adopting", error=str(error))
                continue
            _log.info(
                "the spool of a producer that is gone is drained",
                action="spool_adopted",
                producer=producer,
                reporter=self._reporter,
                captures=folder.waiting,
            )
            self._adopted = (*self._adopted, folder)

    def let_go(self, folder: Folder) -> None:
        """A folder is empty."""
        self._adopted = tuple(each for each in self._adopted if each is not folder)
        folder.close()

    def write(self, prepared: Prepared, *, half_full: bool) -> bool:
        """Whether the spool has taken a capture. `half_full`: memory is, or the end is near."""
        if self._own is None or not (self._mode == "all" or half_full):
            return False
        try:
            return self._own.write(prepared)
        except Exception as error:  # whatever it is: the thread that decodes must not end with it
            SPOOL_TROUBLE.inc()
            _log.error("no capture is spooled", action="spooling", error=type(error).__name__)
            return False

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
