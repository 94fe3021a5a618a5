"""All folders of the spool: this process's own, and those of dead processes."""

import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import structlog

from inference_store.platform.metrics import SPOOL_BYTES, SPOOL_LIMIT, SPOOL_TROUBLE, SPOOLED
from inference_store.platform.settings import CaptureSettings

from .counts import Counts
from .deliveries import Spooled
from .folder_locks import lock_dead_producers, sum_bytes_of_others
from .prepared_capture import PreparedCapture
from .spool import Folder, Room
from .uuid7 import uuid7

_log = structlog.get_logger()


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
        self._adopted: tuple[Folder, ...] = ()
        SPOOL_LIMIT.set(0 if self._mode == "off" else settings.proxy_spool_bytes)
        SPOOL_BYTES.set_function(lambda: self._room.used)
        SPOOLED.set_function(lambda: self.own_waiting + self.adopted_waiting)

    @property
    def is_on(self) -> bool:
        """True if captures may be written to disk."""
        return self._own is not None

    @property
    def adopted(self) -> Sequence[Folder]:
        """Folders of dead processes."""
        return self._adopted

    @property
    def own_waiting(self) -> int:
        """Our own captures in the spool."""
        return 0 if self._own is None else self._own.waiting

    @property
    def adopted_waiting(self) -> int:
        """Captures of dead processes."""
        return sum(folder.waiting for folder in self._adopted)

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
            self._adopted = (*self._adopted, folder)

    def close_folder(self, settled: Folder) -> None:
        """Close an empty adopted folder."""
        self._adopted = tuple(folder for folder in self._adopted if folder is not settled)
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
            if folder.unclaimed and (path := folder.take()) is not None:
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
        self._own, self._adopted = None, ()

    def _bytes_of_others(self) -> int:
        """Return the bytes in folders of other processes: the limit is the directory's."""
        try:
            return sum_bytes_of_others(
                self._root, [folder.counts.producer for folder in self._list_folders()]
            )
        except OSError:  # ours cannot be written then, either: that says why
            return 0

    def _list_folders(self) -> Sequence[Folder]:
        return self._adopted if self._own is None else (*self._adopted, self._own)
