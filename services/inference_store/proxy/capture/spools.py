"""All folders of the spool: this process's own, and those of dead processes."""

import asyncio
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from math import inf
from pathlib import Path

import structlog

from inference_store.inference.producer_reports import ProducerReport
from inference_store.inference.producer_reports import encode as encode_report
from inference_store.platform.metrics import SPOOL_BYTES, SPOOL_LIMIT, SPOOL_TROUBLE, SPOOLED
from inference_store.platform.settings import CaptureSettings
from inference_store.proxy.capture.capture_builder import uuid7
from inference_store.proxy.capture.publisher import Spooled, Topic

from .counts import Counts
from .prepared_capture import PreparedCapture
from .publisher import KAFKA_ERRORS
from .spool import Folder, Room, lock_dead_producers, sum_bytes_of_others

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
        """Return the bytes in folders of other processes: the limit is the directory's."""
        try:
            return sum_bytes_of_others(
                self._root, [folder.counts.producer for folder in self._list_folders()]
            )
        except OSError:  # ours cannot be written then, either: that says why
            return 0

    def _list_folders(self) -> Sequence[Folder]:
        return self.adopted if self._own is None else (*self.adopted, self._own)


# Longest wait for an acknowledgement before others get a turn.
_SECONDS = 5.0
# Longest wait for that of the final report, if nobody else can send it.
_FINAL_SECONDS = 15.0


class Reporting:
    """Sends reports, one at a time: none is sent while another waits for Kafka."""

    def __init__(self, topic: Topic, counts: Counts, spools: Spools) -> None:
        self._topic, self._counts, self._spools = topic, counts, spools
        self._waiting: asyncio.Task[None] | None = None
        self._until = inf
        self._longest = _SECONDS

    async def report_all(self) -> None:
        """Send one report of every producer; close an empty spool after its final report."""
        await self._send(self._counts.report(spooled=self._spools.own_waiting))
        for folder in self._spools.adopted:
            empty = folder.is_settled
            if await self._report_on(folder, final=empty) and empty:
                self._spools.close_folder(folder)

    async def send_final_reports(self, seconds: float = inf) -> ProducerReport:
        """Send the final reports within `seconds`, and return our own; if Kafka is unavailable, our
        own is stored for the process that adopts the spool. Without a spool nobody else can send
        it, and it waits longer."""
        self._until = asyncio.get_running_loop().time() + seconds
        self._longest = _SECONDS if self._spools.is_on else _FINAL_SECONDS
        report = self._counts.report(spooled=self._spools.own_waiting, final=True)
        if not await self._send(report):
            self._spools.store_report(encode_report(report))
            return report
        for folder in self._spools.adopted:
            if not await self._report_on(folder, final=folder.is_settled):
                break
        return report

    async def _report_on(self, folder: Folder, *, final: bool) -> bool:
        stored = folder.read_stored_report()
        if stored is not None:
            if not await self._send_bytes(folder.counts.producer, stored):
                return False
            folder.remove_report()
        return await self._send(folder.counts.report(spooled=folder.waiting, final=final))

    async def _send(self, report: ProducerReport) -> bool:
        """Send a report; return whether Kafka took it in time. If not, it may arrive later as an
        old one."""
        return await self._send_bytes(report.producer, encode_report(report))

    async def _send_bytes(self, producer: str, report: bytes) -> bool:
        """Send an encoded report; return as `_send` does."""
        if self._waiting is not None and not await self._is_done(self._waiting):
            return False
        # Not cancelled when time is up: an idempotent producer would keep the message anyway.
        task = self._waiting = asyncio.create_task(self._topic.report(producer.encode(), report))
        if not await self._is_done(task) or task.cancelled():
            return False
        error = task.exception()
        if error is not None and not isinstance(error, KAFKA_ERRORS):
            raise error
        if error is not None:
            _log.warning("a report waits", action="reporting", error=str(error)[:500])
        return error is None

    def cancel(self) -> None:
        """Stop waiting for an acknowledgement."""
        if self._waiting is not None:
            self._waiting.cancel()

    async def _is_done(self, task: asyncio.Task[None]) -> bool:
        seconds_left = max(0.0, self._until - asyncio.get_running_loop().time())
        return bool((await asyncio.wait({task}, timeout=min(self._longest, seconds_left)))[0])
