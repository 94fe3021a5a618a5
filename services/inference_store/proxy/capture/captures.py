"""Everything between "the answer went back to the caller" and "the event is on Kafka"."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import structlog

from inference_store.store.blobs import Blobs
from inference_store.store.metrics import (
    CAPTURE_QUEUE,
    CAPTURE_SECONDS,
    CAPTURE_TROUBLE,
    CAPTURES,
    CAPTURES_DROPPED,
    CUT_BODIES,
    from_zero,
)
from inference_store.store.producer_reports import DROP_REASONS
from inference_store.store.settings import ProxySettings
from inference_store.store.stages import stage

from .budget import Budget
from .counts import Counts
from .deliveries import Deliveries, Held, Spooled, Store, Topic, release
from .patience import SERVERS
from .prepare import Preparation
from .prepared import Prepared
from .publisher import Publisher
from .reporting import Reporting
from .spools import Spools
from .ticket import OVERHEAD, Ticket
from .uuid7 import uuid7
from .work import Work

# Exchanges on their way for each thread that writes blobs: the others wait for Kafka.
_ON_THEIR_WAY = 4
_DRAINING = 4
_POLL_SECONDS = 0.02
_DISK_SECONDS = 1.0
_OUTCOMES = ("seen", "sampled_out", "dropped", "published")
_log = structlog.get_logger()


class Captures:
    """Captures of one process: a producer with an id of its own, new at every start.

    `begin` and the tickets are for the event loop's thread and never block. Reading, hashing and
    writing are done in threads; decoding in a single one, since it holds the interpreter's lock.
    """

    def __init__(
        self, settings: ProxySettings, *, store: Store | None = None, topic: Topic | None = None
    ) -> None:
        """`store` and `topic`: by default the S3 and the Kafka of the settings."""
        self._settings = settings
        self.producer = str(uuid7())
        self._counts = Counts(self.producer, self.producer, datetime.now(UTC))
        self._budget = Budget(settings.proxy_capture_bytes)
        self._preparation = Preparation(settings)
        blobs = None if store is not None else Blobs(settings, threads=1)
        self._blobs = blobs
        self._topic = topic or Publisher(settings)
        self._decoding = ThreadPoolExecutor(1, thread_name_prefix="capture-decode")
        self._threads = ThreadPoolExecutor(
            settings.proxy_upload_threads, thread_name_prefix="capture-write"
        )
        self._deliveries = Deliveries(
            store or blobs or Blobs(settings, threads=1),
            self._topic,
            settings.s3_bucket,
            self._threads,
            first_seconds=settings.proxy_retry_seconds,
        )
        self._spools = Spools(settings, self._counts)
        self._reporting = Reporting(self._topic, self._counts, self._spools)
        self._queue: asyncio.Queue[Held] = asyncio.Queue()
        self._in_hand: set[Held | Spooled] = set()
        self._spooled = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        # one is counted in the loop's thread, the other in the decoding one
        self._handed, self._decoded = 0, 0
        self._stopping = False
        self._left: int | None = None
        _begin_metrics(self._counts)

    @property
    def waits(self) -> Mapping[str, Callable[[], Awaitable[str | None]]]:
        """What the admin port may show beside its checks: why captures wait for a server."""
        return {
            "object store": self._deliveries.object_store.reason,
            "kafka": self._deliveries.kafka.reason,
        }

    @property
    def queued(self) -> int:
        """Exchanges not published yet, of this process and of those whose spool it drains."""
        return self._counts.queued + self._spools.adopted_waiting

    def begin(self, size: int) -> Ticket | None:
        """An exchange is seen; `size` bytes are reserved (0: not known yet).

        None: no budget; it is counted as dropped and passes through uncaptured.
        """
        body_bytes = self._settings.proxy_body_bytes
        if self._stopping:
            self._counts.refuse("stopping")
            return None
        if not self._budget.take(OVERHEAD + (size if size <= body_bytes else 0)):
            self._counts.refuse("no_budget")
            return None
        return Ticket(
            self._budget,
            self._take_over,
            size=size,
            body_bytes=body_bytes,
            chunks=self._settings.proxy_stream_chunks,
        )

    async def start(self) -> None:
        """Begin to publish. Raises OSError where the spool's folder cannot be used."""
        self._loop = asyncio.get_running_loop()
        await asyncio.to_thread(self._spools.open)
        senders = _ON_THEIR_WAY * self._settings.proxy_upload_threads
        drainers = senders if self._settings.proxy_spool == "all" else _DRAINING
        work = [self._send_queued() for _ in range(senders)]
        if self._settings.proxy_spool != "off":
            work += [self._drain() for _ in range(drainers)]
        self._tasks = [asyncio.create_task(each) for each in (*work, self._report())]
        _log.info("capturing", action="capture_started", producer=self.producer)

    async def stop(self, grace_seconds: float) -> int:
        """Publish what is there, for so long; how many exchanges are left then, in the spool or
        lost (the books and the log say which). New exchanges are refused from now on."""
        if self._left is None:
            self._stopping = True
            self._left = await self._end(grace_seconds)
        return self._left

    async def _end(self, grace_seconds: float) -> int:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + grace_seconds
        while self.queued and loop.time() < deadline and not self._better_on_disk():  # noqa: ASYNC110
            # asked again and again: what happens in threads sets no event
            await asyncio.sleep(_POLL_SECONDS)
        await asyncio.to_thread(self._decoding.shutdown, wait=True, cancel_futures=True)
        await asyncio.sleep(0)  # what the decoding thread has just handed over
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.to_thread(self._spool_rest)
        left = await self._last_words()
        self._reporting.cancel()
        self._threads.shutdown(wait=False, cancel_futures=True)
        await self._topic.close()
        if self._blobs is not None:
            self._blobs.close()
        return left

    def _take_over(self, work: Work, reserved: int) -> None:
        self._counts.see()
        self._handed += 1
        for body in (work.exchange.request, work.exchange.response):
            if not body.whole:
                CUT_BODIES.labels("request" if body is work.exchange.request else "response").inc()
        try:
            self._decoding.submit(self._prepare, work, reserved)
        except RuntimeError:  # it was shut down meanwhile
            self._give_up("stopping", reserved)

    def _prepare(self, work: Work, reserved: int) -> None:
        """Make of an exchange what is written of it; in the decoding thread."""
        sequence = 0
        try:
            with stage(CAPTURE_SECONDS, "prepare"):
                chosen = self._preparation.choose(work)
                if chosen is None:
                    self._counts.sample_out()
                    self._budget.change(-reserved)
                    return
                sequence = self._counts.next_sequence()
                prepared = self._preparation.prepare(chosen, self.producer, sequence)
        except Exception as error:
            if not sequence:
                self._counts.next_sequence()
            _log.error(
                "an exchange cannot be captured",
                action="capture_failed",
                protocol=work.call.protocol.name,
                error=type(error).__name__,
            )
            self._give_up("unreadable", reserved)
        else:
            self._pass_on(prepared, reserved)
        finally:
            self._decoded += 1

    def _pass_on(self, prepared: Prepared, reserved: int) -> None:
        """To the spool, or to the queue in memory; in the decoding thread."""
        size = prepared.size + OVERHEAD
        self._budget.change(size - reserved)
        half_full = self._budget.held > self._budget.limit // 2
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):  # the loop has ended: `stop` counts what is left
            if self._spools.write(prepared, half_full=half_full):
                self._budget.change(-size)
                self._loop.call_soon_threadsafe(self._spooled.set)
            else:
                held = Held(prepared, self._counts, size)
                self._loop.call_soon_threadsafe(self._queue.put_nowait, held)

    def _give_up(self, reason: str, reserved: int) -> None:
        self._budget.change(-reserved)
        self._counts.drop(reason)

    async def _send_queued(self) -> None:
        while True:
            await self._deliver(await self._queue.get())

    async def _drain(self) -> None:
        """Deliver what is in the spool: our own, and that of the dead."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                item = await loop.run_in_executor(None, self._spools.take)
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
        # Not where it was cancelled: `stop` takes care of what is still in hand.
        self._in_hand.discard(item)
        release(item, self._budget)

    def _better_on_disk(self) -> bool:
        """Whether waiting is of no use: a server is away, and the spool takes what is decoded."""
        away = self._deliveries.object_store.away or self._deliveries.kafka.away
        return away is not None and self._spools.is_on and self._decoded == self._handed

    def _spool_rest(self) -> None:
        """Put what is left in memory into the spool; else it is lost, and counted."""
        held = [item for item in self._in_hand if isinstance(item, Held)]
        while not self._queue.empty():
            held.append(self._queue.get_nowait())
        for item in held:
            self._spools.write(item.prepared, half_full=True)
            release(item, self._budget)
        for _ in range(self._counts.queued - self._spools.own_waiting):
            self._counts.drop("left")

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

    async def _last_words(self) -> int:
        """The last reports; how many exchanges are left."""
        spooled = self._spools.own_waiting
        report = await self._reporting.last()
        await asyncio.to_thread(self._spools.close)
        lost = report.dropped.get("left", 0)
        _log.info(
            "capturing has ended",
            action="capture_stopped",
            producer=self.producer,
            published=report.published,
            spooled=spooled,
            lost=lost,
        )
        return spooled + lost


def _begin_metrics(counts: Counts) -> None:
    from_zero(CAPTURES, _OUTCOMES)
    from_zero(CAPTURES_DROPPED, DROP_REASONS)
    from_zero(CUT_BODIES, ("request", "response"))
    from_zero(CAPTURE_TROUBLE, SERVERS)
    CAPTURE_QUEUE.set_function(lambda: counts.queued)
