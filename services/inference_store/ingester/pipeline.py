"""Polls and reads one batch ahead while the batch before it is being written."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from datetime import UTC, datetime
from functools import partial

import structlog
from opentelemetry.trace import INVALID_SPAN, Span, SpanKind

from inference_store.index.accounting import ConsumerFenced, Outcome
from inference_store.index.unsettled import Record, Rejection
from inference_store.index.writing import Indexable
from inference_store.ingester.batch import (
    Batch,
    MissingBlob,
    OffsetRange,
    ReadRecord,
    build_range,
)
from inference_store.ingester.kafka_consumer import KafkaConsumer
from inference_store.ingester.reader import Reader
from inference_store.ingester.writer import RegistrationGone, Settled, Writer
from inference_store.platform import traces
from inference_store.platform.backoff import Backoff, Stopped, pause
from inference_store.platform.failpoints import failpoint
from inference_store.platform.metrics import (
    BATCH_EVENTS,
    BATCH_SECONDS,
    DEAD_LETTERS,
    DELAY_SECONDS,
    EVENTS,
    FLAGGED,
)
from inference_store.platform.serving import Heartbeat
from inference_store.platform.settings import IngesterSettings

from .failures import DeadLetterLimit, Halted

SMALLEST_SLICE = 50
LARGEST_SLICE = 400
FIRST_EVENTS = 8
"""Events of the first batch after a start."""
# In one transaction; a batch with more is cut.
_MOST_ROWS = 100_000
# More than any batch has: its rows are bounded.
_MOST_EVENTS = 1_000_000
# Sidecars are written while the fence is held: retention waits a second or two for this many.
MOST_SIDECARS = 200
# If a slice has more rows than this, the next slice is smaller.
_MANY_ROWS = 50_000
# The size of a row in memory: this many bytes of a sidecar count as one row.
_ROW_BYTES = 650


class BatchBuilder:
    """Collects parts of offset ranges, and their records as read, until the batch is complete."""

    def __init__(self, begin_span: Callable[[], Span] = lambda: INVALID_SPAN) -> None:
        self.reads: list[ReadRecord] = []
        self.rows = 0
        self.sidecars = 0
        self._begin_span = begin_span
        self._span: Span | None = None
        # For each range: its first offset in this batch, how many are lost, and its records so far.
        self._ranges: list[tuple[OffsetRange, int, int, list[Record]]] = []

    @property
    def span(self) -> Span:
        """The trace span of the batch that is being read; it begins with the first slice."""
        if self._span is None:
            self._span = self._begin_span()
        return self._span

    def begin(self, offset_range: OffsetRange) -> None:
        """Begin a range: what is added from now on belongs to it."""
        self._ranges.append((offset_range, offset_range.lo, offset_range.lost, []))

    @property
    def has_begun(self) -> bool:
        """Check whether the batch has something to write."""
        return any(
            records or not offset_range.records for offset_range, _, _, records in self._ranges
        )

    def add(self, records: Sequence[Record], reads: Sequence[ReadRecord]) -> None:
        """Add the next records of the current range, as they were read."""
        self._ranges[-1][3].extend(records)
        self.reads.extend(reads)
        self.rows += sum(map(estimate_rows, reads))
        items = [read.result for read in reads if isinstance(read.result, Indexable)]
        self.sidecars += sum(item.sidecar is not None for item in items)

    def is_full(self, most_rows: int, most_events: int) -> bool:
        """Check whether the batch must be written before more is read."""
        rows, events = self.rows >= most_rows, len(self.reads) >= most_events
        return rows or events or self.sidecars >= MOST_SIDECARS

    def build(self) -> Batch:
        """Return the batch, and begin the next one with the rest of the current range."""
        parts = [
            build_range(
                offset_range.assigned, offset_range.partition_id, lo=lo, lost=lost, records=records
            )
            if records
            else offset_range
            for offset_range, lo, lost, records in self._ranges
            if records or not offset_range.records
        ]
        batch = Batch(parts, self.reads, self.span)
        offset_range = self._ranges[-1][0]
        self._ranges = [(offset_range, parts[-1].hi, 0, [])]
        self.reads, self.rows, self.sidecars, self._span = [], 0, 0, None
        return batch


def estimate_rows(read: ReadRecord) -> int:
    """Return about how many rows a record will be."""
    item = read.result
    if not isinstance(item, Indexable):
        return 1
    sidecar = 0 if item.sidecar is None else len(item.sidecar.content) // _ROW_BYTES
    return 1 + len(item.metadata.leaves) + len(item.predictions.items or ()) + sidecar


_log = structlog.get_logger()


class Pipeline:
    """Moves events from Kafka to Postgres, until it is asked to stop."""

    def __init__(
        self,
        settings: IngesterSettings,
        consumer: KafkaConsumer,
        reader: Reader,
        writer: Writer,
        *,
        limit: DeadLetterLimit,
        backoff: Backoff,
        heartbeat: Heartbeat,
        stop: asyncio.Event,
    ) -> None:
        self._settings = settings
        self._consumer = consumer
        self._reader = reader
        self._writer = writer
        self._limit = limit
        self._backoff = backoff
        self._heartbeat = heartbeat
        self._stop = stop
        # One batch ahead: the reader waits here while the writer is behind.
        self._slice = SMALLEST_SLICE
        # In a batch: few after a start, so that an ingester that is killed every few seconds makes
        # progress, and twice as many after each batch.
        self._most_events = FIRST_EVENTS
        self._ahead: asyncio.Queue[Batch | None] = asyncio.Queue(maxsize=1)

    async def run(self) -> None:
        """Run until stopped. The next consumer reads records again that were not yet written."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._read())
                tasks.create_task(self._write())
        except* Stopped:
            pass

    async def _read(self) -> None:
        while not self._stop.is_set():
            self._heartbeat.beat()
            ranges = await self._backoff.retry(self._consumer.poll)
            if not ranges:
                continue
            failpoint("ingester.poll.after")
            async for batch in self._batches(ranges):
                await self._ahead.put(batch)
        await self._ahead.put(None)

    async def _batches(self, ranges: list[OffsetRange]) -> AsyncIterator[Batch]:
        """Read the polled records slice by slice, and yield each batch as soon as it is full.

        Only one batch is in memory, so slices are small while events are large.
        """
        builder = BatchBuilder(self._begin_span)
        for offset_range in ranges:
            remaining = list(offset_range.records)
            builder.begin(offset_range)
            while remaining:
                size = min(self._slice, max(1, self._most_events - len(builder.reads)))
                if self._settings.ingester_sidecars != "off":  # each record may need one
                    size = min(size, MOST_SIDECARS - builder.sidecars)
                records, remaining = remaining[:size], remaining[size:]
                started = time.perf_counter()
                with traces.within(builder.span):
                    reads = await self._backoff.retry(partial(self._reader.read, records))
                BATCH_SECONDS.labels("read").observe(time.perf_counter() - started)
                builder.add(records, reads)
                if sum(map(estimate_rows, reads)) > _MANY_ROWS:
                    self._slice = max(SMALLEST_SLICE // 10, self._slice // 4)
                else:
                    self._slice = min(LARGEST_SLICE, self._slice * 2)
                if builder.is_full(_MOST_ROWS, self._most_events):
                    yield builder.build()
        if builder.has_begun:
            yield builder.build()

    async def _write(self) -> None:
        while (batch := await self._ahead.get()) is not None:
            self._heartbeat.beat("write")
            with traces.ended(batch.span):
                await self._write_one(batch)
            # A pipeline without anything to write is not stuck.
            self._heartbeat.rest("write")

    async def _write_one(self, batch: Batch) -> None:
        started = time.perf_counter()
        headers = (header for read in batch.reads for header in read.record.headers)
        traces.link(batch.span, (value for name, value in headers if name == "traceparent"))
        while True:
            batch.drop_revoked()
            if not batch.ranges:
                return
            try:
                settled = await self._backoff.retry(lambda: self._attempt(batch))
                break
            except ConsumerFenced as fenced:
                _log.warning("fenced", action="fenced", reason=str(fenced))
                for offset_range in batch.ranges:
                    self._consumer.reset(offset_range.assigned)
                return
            except RegistrationGone:
                await self._read_again(batch)
            except Halted as halted:
                _log.error("halted", action="halted", reason=str(halted))
                await self._pause()
        batch.span.set_attribute("messaging.batch.message_count", len(batch.reads))
        BATCH_SECONDS.labels("write").observe(time.perf_counter() - started)
        self._limit.note(settled)
        self._most_events = min(2 * self._most_events, _MOST_EVENTS)
        self._count(batch, settled)
        await self._consumer.commit(batch.ranges)
        failpoint("ingester.kafka_commit.after")

    async def _read_again(self, batch: Batch) -> None:
        """Read the batch again: a registration changed meanwhile."""
        records = [read.record for read in batch.reads]

        async def read() -> list[ReadRecord]:
            self._heartbeat.beat("write")
            return await self._reader.read(records)

        batch.reads = await self._backoff.retry(read)

    async def _attempt(self, batch: Batch) -> Settled:
        self._heartbeat.beat("write")
        return await self._writer.write(batch, self._limit.check)

    async def _pause(self) -> None:
        """Wait while halted: the window moves on, and limits may be raised."""
        for _ in range(10):
            self._heartbeat.beat()
            self._heartbeat.beat("write")
            if await pause(self._stop, 1.0):
                raise Stopped

    def _count(self, batch: Batch, settled: Settled) -> None:
        total = Counter(outcome for _, outcome in settled)
        for outcome, count in total.items():
            EVENTS.labels(outcome.value).inc(count)
        # The other dead letters could be read, but Postgres refused them.
        refused = total[Outcome.DEAD] - count_reads(batch.reads)
        if refused > 0:
            DEAD_LETTERS.labels("unindexable").inc(refused)
        BATCH_EVENTS.observe(len(batch.reads))
        oldest = min((read.record.time for read in batch.reads), default=None)
        if oldest is not None:
            DELAY_SECONDS.observe(max(0.0, (datetime.now(UTC) - oldest).total_seconds()))
        for offset_range in batch.ranges:
            last = offset_range.records[-1].time if offset_range.records else None
            offset_range.assigned.note_written(offset_range.hi, last)

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


def count_reads(reads: Iterable[ReadRecord]) -> int:
    """Count reasons and flags of the records; return the number of unreadable ones."""
    dead = 0
    for read in reads:
        match read.result:
            case Rejection(reason=reason):
                dead += 1
                DEAD_LETTERS.labels(reason).inc()
            case MissingBlob(reason=reason):
                DEAD_LETTERS.labels(reason).inc()
            case Indexable() as item:
                for flag in item.all_flags:
                    FLAGGED.labels(flag.partition(":")[0]).inc()
    return dead
