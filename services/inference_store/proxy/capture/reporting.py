"""Reports of the accounting: our own, and those of producers whose spool we drain."""

import asyncio
from math import inf

import structlog

from inference_store.inference.producer_reports import ProducerReport, encode

from .counts import Counts
from .deliveries import Topic
from .publisher import KAFKA_ERRORS
from .spool import Folder
from .spools import Spools

# Longest wait for an acknowledgement before others get a turn.
_SECONDS = 5.0
# Longest wait for that of the final report, if nobody else can send it.
_FINAL_SECONDS = 15.0
_log = structlog.get_logger()


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
            self._spools.store_report(encode(report))
            return report
        for folder in self._spools.adopted:
            if not await self._report_on(folder, final=folder.is_settled):
                break
        return report

    async def _report_on(self, folder: Folder, *, final: bool) -> bool:
        """Report the state of a dead producer's spool, after the report that it could not send
        itself."""
        stored = folder.read_stored_report()
        if stored is not None:
            if not await self._send_bytes(folder.counts.producer, stored):
                return False
            folder.remove_report()
        return await self._send(folder.counts.report(spooled=folder.waiting, final=final))

    async def _send(self, report: ProducerReport) -> bool:
        """Send a report; return whether Kafka took it in time. If not, it may arrive later as an
        old one."""
        return await self._send_bytes(report.producer, encode(report))

    async def _send_bytes(self, producer: str, report: bytes) -> bool:
        """Send an encoded report; return as `_send` does."""
        if self._waiting is not None and not await self._is_done(self._waiting):
            return False
        # Not cancelled when time is up: an idempotent producer would keep the message anyway.
        self._waiting = asyncio.create_task(self._topic.report(producer.encode(), report))
        return await self._is_done(self._waiting) and self._has_arrived(self._waiting)

    def cancel(self) -> None:
        """Stop waiting for an acknowledgement."""
        if self._waiting is not None:
            self._waiting.cancel()

    async def _is_done(self, task: asyncio.Task[None]) -> bool:
        seconds_left = max(0.0, self._until - asyncio.get_running_loop().time())
        return bool((await asyncio.wait({task}, timeout=min(self._longest, seconds_left)))[0])

    def _has_arrived(self, task: asyncio.Task[None]) -> bool:
        error = None if task.cancelled() else task.exception()
        if error is None:
            return not task.cancelled()
        if not isinstance(error, KAFKA_ERRORS):
            raise error
        _log.warning("a report waits", action="reporting", error=str(error)[:500])
        return False
