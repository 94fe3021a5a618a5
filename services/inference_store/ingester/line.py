"""The line: poll and read one batch ahead while the batch before is being written."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator
from datetime import UTC, datetime
from functools import partial

import structlog
from opentelemetry.trace import Span, SpanKind

from inference_store.index.books import Fenced, Outcome
from inference_store.index.records import Trouble
from inference_store.index.writing import Indexable
from inference_store.platform import traces
from inference_store.platform.admin import Heartbeat
from inference_store.platform.failpoints import failpoint
from inference_store.platform.metrics import (
    BATCH_EVENTS,
    BATCH_SECONDS,
    DEAD_LETTERS,
    DELAY_SECONDS,
    EVENTS,
    FLAGGED,
)
from inference_store.platform.settings import IngesterSettings

from .backoff import Backoff, Stopped
from .batch import Batch, MissingBlob, Read, Share
from .consumer import Topic
from .limit import DeadLetterLimit, Halted
from .reading import Reader
from .shares import MOST_SIDECARS, SMALLEST_SLICE, Gathering, Pace, slice_after
from .write import RegistrationGone, Settled, Writer

_log = structlog.get_logger()


class Line:
    """Kafka → Postgres, until asked to stop."""

    def __init__(
        self,
        settings: IngesterSettings,
        topic: Topic,
        reader: Reader,
        writer: Writer,
        *,
        limit: DeadLetterLimit,
        backoff: Backoff,
        heartbeat: Heartbeat,
        stop: asyncio.Event,
    ) -> None:
        self._settings = settings
        self._topic = topic
        self._reader = reader
        self._writer = writer
        self._limit = limit
        self._backoff = backoff
        self._heartbeat = heartbeat
        self._stop = stop
        # One batch ahead: the reader waits here while the writer is behind.
        self._slice = SMALLEST_SLICE
        self._pace = Pace()
        self._ahead: asyncio.Queue[Batch | None] = asyncio.Queue(maxsize=1)

    async def run(self) -> None:
        """Until stopped; what was read but not written is read again by whoever comes next."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._read())
                tasks.create_task(self._write())
        except* Stopped:
            pass

    async def _read(self) -> None:
        while not self._stop.is_set():
            self._heartbeat.beat()
            shares = await self._backoff.retry(self._topic.poll)
            if not shares:
                continue
            failpoint("ingester.poll.after")
            async for batch in self._batches(shares):
                await self._ahead.put(batch)
        await self._ahead.put(None)

    async def _batches(self, shares: list[Share]) -> AsyncIterator[Batch]:
        """What was polled, read slice by slice: a batch is full by its rows, if not by its events.

        Only what is in it is in memory, so slices are small while events are large.
        """
        batch = Gathering(self._begin_span)
        for share in shares:
            remaining = list(share.records)
            batch.begin(share)
            while remaining:
                size = self._size(batch)
                some, remaining = remaining[:size], remaining[size:]
                started = time.perf_counter()
                with traces.within(batch.span):
                    reads = await self._backoff.retry(partial(self._reader.read, some))
                BATCH_SECONDS.labels("read").observe(time.perf_counter() - started)
                batch.add(some, reads)
                self._slice = slice_after(self._slice, reads)
                if batch.is_full(self._settings.ingester_batch_rows, self._pace.events):
                    yield batch.taken()
        if batch.has_begun:
            yield batch.taken()

    def _size(self, batch: Gathering) -> int:
        """How many records are read next: each may bring a sidecar."""
        size = min(self._slice, max(1, self._pace.events - len(batch.reads)))
        if self._settings.ingester_sidecars == "off":
            return size
        return min(size, MOST_SIDECARS - batch.sidecars)

    async def _write(self) -> None:
        while (batch := await self._ahead.get()) is not None:
            self._heartbeat.beat("write")
            with traces.ended(batch.span):
                await self._write_one(batch)
            # Nothing to write is no reason to call the line stuck.
            self._heartbeat.rest("write")

    async def _write_one(self, batch: Batch) -> None:
        started = time.perf_counter()
        traces.link(batch.span, _traceparents(batch))
        while True:
            batch.drop_gone()
            if not batch.shares:
                return
            try:
                settled = await self._backoff.retry(lambda: self._attempt(batch))
                break
            except Fenced as fenced:
                _log.warning("fenced", action="fenced", reason=str(fenced))
                self._look_again(batch)
                return
            except RegistrationGone:
                await self._read_again(batch)
            except Halted as halted:
                _log.error("halted", action="halted", reason=str(halted))
                await self._pause()
        batch.span.set_attribute("messaging.batch.message_count", len(batch.reads))
        BATCH_SECONDS.labels("write").observe(time.perf_counter() - started)
        self._limit.note(settled)
        self._pace.grow()
        self._count(batch, settled)
        await self._topic.commit(batch.shares)
        failpoint("ingester.kafka_commit.after")

    async def _read_again(self, batch: Batch) -> None:
        """A registration changed under the batch: what it says is read anew."""
        records = [read.record for read in batch.reads]

        async def read() -> list[Read]:
            self._heartbeat.beat("write")
            return await self._reader.read(records)

        batch.reads = await self._backoff.retry(read)

    async def _attempt(self, batch: Batch) -> Settled:
        self._heartbeat.beat("write")
        return await self._writer.write(batch, self._limit.check)

    def _look_again(self, batch: Batch) -> None:
        for share in batch.shares:
            self._topic.look_again(share.assigned)

    async def _pause(self) -> None:
        """Halted: look again now and then, for the window moves on and limits may be raised."""
        for _ in range(10):
            self._heartbeat.beat()
            self._heartbeat.beat("write")
            try:
                await asyncio.wait_for(self._stop.wait(), 1.0)
            except TimeoutError:
                continue
            raise Stopped

    def _count(self, batch: Batch, settled: Settled) -> None:
        total = Counter(outcome for _, outcome in settled)
        for outcome, count in total.items():
            EVENTS.labels(outcome.value).inc(count)
        # Of what was read well Postgres refused the rest.
        refused = total[Outcome.DEAD] - count_reads(batch.reads)
        if refused > 0:
            DEAD_LETTERS.labels("unindexable").inc(refused)
        self._note_written(batch)

    def _note_written(self, batch: Batch) -> None:
        BATCH_EVENTS.observe(len(batch.reads))
        oldest = min((read.record.time for read in batch.reads), default=None)
        if oldest is not None:
            DELAY_SECONDS.observe(max(0.0, (datetime.now(UTC) - oldest).total_seconds()))
        for share in batch.shares:
            last = share.records[-1].time if share.records else None
            share.assigned.wrote(share.hi, last)

    def _begin_span(self) -> Span:
        topic = self._settings.kafka_topic
        attributes = {
            "messaging.system": "kafka",
            "messaging.operation.type": "process",
            "messaging.operation.name": "process",
            "messaging.destination.name": topic,
            "messaging.consumer.group.name": self._settings.kafka_group,
        }
        return traces.begin(f"process {topic}", SpanKind.CONSUMER, attributes)


def _traceparents(batch: Batch) -> Iterator[str]:
    for read in batch.reads:
        for name, value in read.record.headers:
            if name == "traceparent":
                yield value


def count_reads(reads: Iterable[Read]) -> int:
    """Count reasons and flags of what was read; how many cannot be read."""
    dead = 0
    for read in reads:
        match read.result:
            case Trouble(reason=reason):
                dead += 1
                DEAD_LETTERS.labels(reason).inc()
            case MissingBlob(reason=reason):
                DEAD_LETTERS.labels(reason).inc()
            case Indexable() as item:
                for flag in item.all_flags:
                    FLAGGED.labels(flag.partition(":")[0]).inc()
    return dead
