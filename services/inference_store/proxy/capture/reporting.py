"""Reports of the books: our own, and those of producers whose spool we drain."""

import asyncio
from math import inf

import structlog

from inference_store.inference.producer_reports import ProducerReport, encode

from .counts import Counts
from .deliveries import Topic
from .publisher import AWAY
from .spool import Folder
from .spools import Spools

# Longest wait for an acknowledgement before others have their turn.
_SECONDS = 5.0
_log = structlog.get_logger()


class Reporting:
    """Sends reports; while one waits for Kafka no further one is made."""

    def __init__(self, topic: Topic, counts: Counts, spools: Spools) -> None:
        self._topic, self._counts, self._spools = topic, counts, spools
        self._waiting: asyncio.Task[None] | None = None
        self._until = inf

    async def all_books(self) -> None:
        """One report of every producer; a spool that is empty is let go after its last one."""
        await self._send(self._counts.report(spooled=self._spools.own_waiting))
        for folder in self._spools.adopted:
            empty = folder.is_settled
            if await self._report_on(folder, final=empty) and empty:
                self._spools.let_go(folder)

    async def last(self, seconds: float = inf) -> ProducerReport:
        """The last ones, sent within so long; where Kafka is away our own is kept for whoever finds
        the spool."""
        self._until = asyncio.get_running_loop().time() + seconds
        report = self._counts.report(spooled=self._spools.own_waiting, final=True)
        if not await self._send(report):
            self._spools.keep_report(encode(report))
            return report
        for folder in self._spools.adopted:
            if not await self._report_on(folder, final=folder.is_settled):
                break
        return report

    async def _report_on(self, folder: Folder, *, final: bool) -> bool:
        """How a dead producer's spool stands, after the report that it could not send itself."""
        kept = folder.kept_report()
        if kept is not None:
            if not await self._send_bytes(folder.counts.producer, kept):
                return False
            folder.forget_report()
        return await self._send(folder.counts.report(spooled=folder.waiting, final=final))

    async def _send(self, report: ProducerReport) -> bool:
        """Whether Kafka took it in time; else it may arrive later, and then is an old one."""
        return await self._send_bytes(report.producer, encode(report))

    async def _send_bytes(self, producer: str, report: bytes) -> bool:
        """As `_send`, of a report that is encoded already."""
        if self._waiting is not None and not await self._is_done(self._waiting):
            return False
        # Not cancelled when time is up: an idempotent producer would keep the message all the same.
        self._waiting = asyncio.create_task(self._topic.report(producer.encode(), report))
        return await self._is_done(self._waiting) and self._has_arrived(self._waiting)

    def cancel(self) -> None:
        """Wait for nothing any more."""
        if self._waiting is not None:
            self._waiting.cancel()

    async def _is_done(self, task: asyncio.Task[None]) -> bool:
        left = max(0.0, self._until - asyncio.get_running_loop().time())
        return bool((await asyncio.wait({task}, timeout=min(_SECONDS, left)))[0])

    def _has_arrived(self, task: asyncio.Task[None]) -> bool:
        error = None if task.cancelled() else task.exception()
        if error is None:
            return not task.cancelled()
        if not isinstance(error, AWAY):
            raise error
        _log.warning("a report waits", action="reporting", error=str(error)[:500])
        return False
