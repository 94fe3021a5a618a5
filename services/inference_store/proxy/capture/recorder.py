"""The capture process: everything between "the answer went back" and "the event is on Kafka".

One thread reads the socket, so that what was handed over is here when the serving process dies;
another decodes. All that waits is within the one budget. It ends when the socket has ended.
"""

import asyncio
import contextlib
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import orjson
import structlog

from inference_store.objects import Blobs
from inference_store.platform.metrics import CAPTURE_SECONDS, INCOMPLETE_CAPTURES
from inference_store.platform.metrics_of_two import samples_of
from inference_store.platform.stages import stage
from inference_store.proxy.protocols import PROTOCOLS, Protocol

from .arrivals import Arrivals
from .backoff import SERVERS
from .budget import Budget
from .counting import begin_metrics
from .counts import Counts
from .deliveries import Deliveries, Held, Spooled, Store, Topic, release
from .frames import Reader, Sent
from .grace import Grace
from .hello import Hello
from .page import Page
from .prepare import Preparation
from .prepared import Prepared
from .publisher import Publisher
from .registrations import Registrations
from .reporting import Reporting
from .spools import Spools

# Exchanges on their way for each thread that writes blobs: the others wait for Kafka.
_ON_THEIR_WAY: Final = 4
_DRAINING: Final = 4
_POLL_SECONDS: Final = 0.02
_DISK_SECONDS: Final = 1.0
_TELL_SECONDS: Final = 0.5
# A last report has so long at least, where the CPU came late: without it the books stay open.
_REPORT_SECONDS: Final = 2.0
# Bytes that what is written of an exchange is counted with beside its objects and events.
_OVERHEAD: Final = 4096
_log = structlog.get_logger()


class Recorder:
    """Makes events of the exchanges that come through the socket, and publishes them."""

    def __init__(
        self,
        hello: Hello,
        reader: Reader,
        page: Page,
        lock: int | None,
        *,
        protocols: Mapping[str, Protocol] = PROTOCOLS,
        store: Store | None = None,
        topic: Topic | None = None,
    ) -> None:
        """`lock`: of the spool's folder, where there is one. `store` and `topic`: by default the S3
        and the Kafka of the settings."""
        settings = self._settings = hello.settings
        self._page, self._protocols = page, protocols
        self._counts = Counts(hello.producer, hello.producer, hello.booted_at, page.cells)
        self._arrivals = Arrivals(
            reader, page, self._counts, grace_seconds=settings.proxy_grace_seconds
        )
        self._handed_before = hello.handed
        self._budget = Budget(page.cells, settings.proxy_capture_bytes)
        self._registrations = Registrations(settings)
        self._preparation = Preparation(settings, self._registrations.of)
        self._blobs = None if store is not None else Blobs(settings, threads=1)
        self._topic = topic or Publisher(settings)
        self._reading = ThreadPoolExecutor(1, thread_name_prefix="capture-read")
        self._decoding = ThreadPoolExecutor(1, thread_name_prefix="capture-decode")
        self._threads = ThreadPoolExecutor(
            settings.proxy_upload_threads, thread_name_prefix="capture-write"
        )
        self._deliveries = Deliveries(
            store or self._blobs or Blobs(settings, threads=1),
            self._topic,
            settings.s3_bucket,
            self._threads,
            first_seconds=settings.proxy_retry_seconds,
        )
        self._spools = Spools(settings, self._counts, lock)
        self._reporting = Reporting(self._topic, self._counts, self._spools)
        self._queue: asyncio.Queue[Held] = asyncio.Queue()
        self._in_hand: set[Held | Spooled] = set()
        self._spooled = asyncio.Event()
        # one is counted in the decoding thread, the other in the loop's
        self._queued, self._gone = 0, 0
        begin_metrics()

    async def run(self) -> None:
        """Publish what comes until the socket ends, then what is left, as long as there is time."""
        self._loop = asyncio.get_running_loop()
        await asyncio.to_thread(self._spools.open)
        await asyncio.to_thread(self._registrations.open)
        self._counts.go_on(self._handed_before, self._spools.own_waiting)
        senders = _ON_THEIR_WAY * self._settings.proxy_upload_threads
        drainers = senders if self._settings.proxy_spool == "all" else _DRAINING
        work = [self._send_queued() for _ in range(senders)]
        if self._spools.is_on:
            work += [self._drain() for _ in range(drainers)]
        work += [self._report(), self._tell(), self._registrations.keep_current()]
        tasks = [asyncio.create_task(each) for each in work]
        _log.info("capturing", action="capture_started", producer=self._counts.producer)
        reading = self._loop.run_in_executor(self._reading, self._arrivals.read)
        await self._loop.run_in_executor(self._decoding, self._decode)
        if not self._arrivals.is_late:
            await reading
        await self._end(tasks)

    def _decode(self) -> None:
        """Prepare what came; in a thread."""
        while (sent := self._arrivals.next()) is not None:
            while self._is_full() and not self._arrivals.is_late:
                time.sleep(_POLL_SECONDS)
            self._prepare(sent)

    def _is_full(self) -> bool:
        """Whether something has to go first: what is prepared may be larger than what came."""
        return self._budget.held > self._budget.limit and self._queued > self._gone

    async def _end(self, tasks: list[asyncio.Task[None]]) -> None:
        if self._arrivals.were_cut_off:
            _log.error("the serving process is gone", action="capture_alone")
            self._counts.lose_unread()
        while self._waiting and not self._arrivals.is_late and not self._better_on_disk():  # noqa: ASYNC110
            # asked again and again: what happens in threads sets no event
            await asyncio.sleep(_POLL_SECONDS)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        grace = Grace(self._arrivals.left)
        await asyncio.to_thread(self._spool_rest)
        await self._last_words(grace)
        self._reporting.cancel()
        self._threads.shutdown(wait=False, cancel_futures=True)
        await grace.within(self._topic.close())
        if self._blobs is not None:
            self._blobs.close()

    @property
    def _waiting(self) -> int:
        """Exchanges that came and are not published, those in the spools of the dead, too."""
        return self._counts.queued + self._spools.adopted_waiting

    def _prepare(self, sent: Sent) -> None:
        """Make of an exchange what is written of it; in the decoding thread."""
        sequence = 0
        try:
            with stage(CAPTURE_SECONDS, "prepare"):
                work = sent.work(self._protocols)
                chosen = self._preparation.choose(work)
                if chosen is None:
                    self._counts.sample_out()
                    self._budget.free(sent.reserved)
                    return
                sequence = self._counts.next_sequence()
                prepared = self._preparation.prepare(chosen, self._counts.producer, sequence)
        except Exception as error:  # whatever strangers' bytes do: one is lost, and counted
            if not sequence:
                self._counts.next_sequence()
            _log.error(
                "an exchange cannot be captured",
                action="capture_failed",
                protocol=sent.head["protocol"],
                error=type(error).__name__,
            )
            self._budget.free(sent.reserved)
            self._counts.drop("unreadable")
        else:
            for reason in prepared.problems:
                INCOMPLETE_CAPTURES.labels(reason).inc()
            self._pass_on(prepared, sent.reserved)

    def _pass_on(self, prepared: Prepared, reserved: int) -> None:
        """To the spool, or to the queue in memory; in the decoding thread."""
        size = prepared.size + _OVERHEAD
        self._budget.free(reserved - size)
        half_full = self._budget.held > self._budget.limit // 2
        with contextlib.suppress(RuntimeError):  # the loop has ended: what is left is counted
            if self._spools.write(prepared, half_full=half_full):
                self._budget.free(size)
                self._loop.call_soon_threadsafe(self._spooled.set)
            else:
                held = Held(prepared, self._counts, size)
                self._queued += 1
                self._loop.call_soon_threadsafe(self._queue.put_nowait, held)

    async def _send_queued(self) -> None:
        while True:
            await self._deliver(await self._queue.get())

    async def _drain(self) -> None:
        """Deliver what is in the spool: our own, and that of the dead."""
        while True:
            try:
                item = await self._loop.run_in_executor(None, self._spools.take)
            except OSError as error:
                _log.warning("the spool cannot be read", action="draining", error=str(error))
                await asyncio.sleep(_DISK_SECONDS)
                continue
            if item is not None:
                await self._deliver(item)
                continue
            self._spooled.clear()
            if not self._spools.untaken:  # none has come since it was looked
                await self._spooled.wait()

    async def _deliver(self, item: Held | Spooled) -> None:
        self._in_hand.add(item)
        await self._deliveries.deliver(item)
        # Not where it was cancelled: `_end` takes care of what is still in hand.
        self._in_hand.discard(item)
        release(item, self._budget)
        self._gone += isinstance(item, Held)

    def _better_on_disk(self) -> bool:
        """Whether waiting is of no use: a server is unavailable, and the spool takes captures."""
        unavailable = (
            self._deliveries.object_store.unavailable or self._deliveries.kafka.unavailable
        )
        return unavailable is not None and self._spools.is_on

    def _spool_rest(self) -> None:
        """Put what is left in memory into the spool; else it is lost, and counted."""
        held = [item for item in self._in_hand if isinstance(item, Held)]
        while not self._queue.empty():
            held.append(self._queue.get_nowait())
        for item in held:
            self._spools.write(item.prepared, half_full=True)
            release(item, self._budget)
        self._counts.give_up(self._spools.own_waiting)

    async def _report(self) -> None:
        """Say every 10 seconds how the books stand; look for the spools of the dead, too."""
        while True:
            try:
                await asyncio.to_thread(self._spools.adopt)
            except OSError as error:
                _log.warning("the spool cannot be read", action="adopting", error=str(error))
            if self._spools.untaken:
                self._spooled.set()
            try:
                await self._reporting.all_books()
            except Exception as error:  # a producer that never reports again counts as dead
                _log.warning("no report", action="reporting", error=type(error).__name__)
            await asyncio.sleep(self._settings.proxy_report_seconds)

    async def _tell(self) -> None:
        while True:
            self._tell_once()
            await asyncio.sleep(_TELL_SECONDS)

    def _tell_once(self) -> None:
        """For the admin port of the serving process."""
        backoffs = (self._deliveries.object_store, self._deliveries.kafka)
        unavailable = {
            server: backoff.unavailable for server, backoff in zip(SERVERS, backoffs, strict=True)
        }
        state = {"unavailable": unavailable, "metrics": samples_of("proxy")}
        self._page.tell(orjson.dumps(state))

    async def _last_words(self, grace: Grace) -> None:
        """The last reports; how many exchanges are left."""
        spooled = self._spools.own_waiting
        report = await self._reporting.last(max(grace.left / 2, _REPORT_SECONDS))
        await asyncio.to_thread(self._spools.close)
        self._tell_once()
        _log.info(
            "capturing has ended",
            action="capture_stopped",
            producer=self._counts.producer,
            published=report.published,
            spooled=spooled,
            lost=report.dropped.get("left", 0),
        )
