"""Publishes events and reports to Kafka with an idempotent producer, after the objects of the
events."""

import asyncio
from collections.abc import Coroutine, Sequence, Set
from concurrent.futures import Executor
from datetime import UTC, datetime
from functools import partial
from itertools import takewhile
from typing import Any, Literal, Protocol, TypeAlias

import structlog
from aiokafka import AIOKafkaProducer
from aiokafka.errors import (
    KafkaError,
    MessageSizeTooLargeError,
    ProducerClosed,
    RecordTooLargeError,
)
from aiokafka.producer.message_accumulator import BatchBuilder

from inference_store.inference.errors import ObjectStoreUnavailable
from inference_store.inference.events import StorageKey
from inference_store.inference.events.wire import rfc3339
from inference_store.inference.producer_reports import encode as encode_report
from inference_store.inference.tar import CONTENT_TYPE
from inference_store.platform.backoff import Backoff
from inference_store.platform.kafka import client_arguments
from inference_store.platform.metrics import (
    CAPTURE_SECONDS,
    CAPTURE_TROUBLE,
    SEGMENTS,
)
from inference_store.platform.settings import KafkaSettings
from inference_store.platform.traces import stage, throttle_logs
from inference_store.proxy.capture.counts import Counts
from inference_store.proxy.capture.segments import (
    Contents,
    Event,
    Segment,
    cut_segment,
    describe_segment,
    read_segment,
    stamp_event,
)
from inference_store.proxy.capture.spool import Spooled, Spools

Server: TypeAlias = Literal["object store", "kafka"]
SERVERS: Sequence[Server] = ("object store", "kafka")
_log = structlog.get_logger()

KAFKA_ERRORS = (KafkaError, OSError)
"""Errors that mean that Kafka is unavailable, or cannot accept a message now."""
_TOO_LARGE = (MessageSizeTooLargeError, RecordTooLargeError)
_STOP_SECONDS = 3.0
_LINGER_MILLISECONDS = 5
# Of a batch of events: brokers take a mebibyte.
_BATCH_BYTES = 256 * 1024


class Publisher:
    """A producer that is created when it is needed, and again after it has failed for good."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._producer: AIOKafkaProducer | None = None
        self._is_given_up = asyncio.Event()
        """Of that producer."""
        self._turn = 0
        self._starting = asyncio.Lock()

    async def publish(self, events: Sequence[Event], *, producer: str) -> Set[int]:
        """Send events; return, when all others are acknowledged, the sequences of those that Kafka
        will never take, because they are too large.

        Raises one of KAFKA_ERRORS. An idempotent producer retries by itself as long as the broker
        is unavailable, so it may take as long as that.
        """
        done, refused, alone = 0, set[int](), 0
        while done < len(events):
            kafka = await self._start_producer()
            builder = kafka.create_batch()
            rest = events[done:] if done >= alone else events[done : done + 1]
            fit = list(takewhile(partial(_append, builder, producer.encode()), rest))
            try:
                await self._await_acknowledgement(kafka, self._send(kafka, builder))
            except _TOO_LARGE:
                # its number is missing in the sequence: this producer takes no more
                await self._discard(kafka)
                if len(fit) > 1:  # not all of them: each for itself
                    alone = done + len(fit)
                    continue
                refused.add(fit[0].sequence)
            done += len(fit)
        return refused

    async def _send(self, kafka: AIOKafkaProducer, builder: BatchBuilder) -> None:
        topic = self._settings.kafka_topic
        partitions = sorted(await kafka.partitions_for(topic))
        self._turn += 1
        partition = partitions[self._turn % len(partitions)]
        await (await kafka.send_batch(builder, topic, partition=partition))

    async def report(self, key: bytes, value: bytes) -> None:
        """Send a report; returns when it is acknowledged. Raises one of KAFKA_ERRORS."""
        kafka = await self._start_producer()
        topic = self._settings.kafka_reports_topic
        await self._await_acknowledgement(kafka, kafka.send_and_wait(topic, value, key=key))

    async def close(self) -> None:
        """Stop; what is not acknowledged within a few seconds is given up."""
        if self._producer is not None:
            await self._discard(self._producer)

    async def _await_acknowledgement(
        self, kafka: AIOKafkaProducer, sending: Coroutine[Any, Any, object]
    ) -> None:
        """Wait for an acknowledgement. Raises ProducerClosed if the producer is discarded
        meanwhile: it never answers what it still holds then."""
        work = asyncio.ensure_future(sending)
        end = asyncio.ensure_future(self._is_given_up.wait())
        try:
            await asyncio.wait({work, end}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                raise ProducerClosed
            await work
        except KafkaError as error:
            if not error.retriable:  # this producer may refuse everything from now on
                await self._discard(kafka)
            raise
        finally:
            work.cancel()
            end.cancel()

    async def _start_producer(self) -> AIOKafkaProducer:
        async with self._starting:
            if self._producer is None:
                throttle_logs("aiokafka")
                producer = AIOKafkaProducer(
                    **client_arguments(self._settings),
                    enable_idempotence=True,
                    acks="all",
                    linger_ms=_LINGER_MILLISECONDS,
                    max_batch_size=_BATCH_BYTES,
                )
                try:
                    await producer.start()
                except BaseException:
                    await _stop_producer(producer)
                    raise
                self._producer, self._is_given_up = producer, asyncio.Event()
            return self._producer

    async def _discard(self, producer: AIOKafkaProducer) -> None:
        if self._producer is producer:
            self._producer, is_given_up = None, self._is_given_up
            try:
                await _stop_producer(producer)
            finally:
                is_given_up.set()


def _append(builder: BatchBuilder, producer: bytes, event: Event) -> bool:
    headers = [("producer", producer), ("sequence", b"%d" % event.sequence)]
    added = builder.append(timestamp=None, key=event.key, value=event.value, headers=headers)
    return added is not None


async def _stop_producer(producer: AIOKafkaProducer) -> None:
    stopping = asyncio.ensure_future(producer.stop())
    done, _ = await asyncio.wait({stopping}, timeout=_STOP_SECONDS)
    if not done:
        stopping.cancel()
        await asyncio.wait({stopping}, timeout=1.0)
    if stopping.done() and not stopping.cancelled() and (error := stopping.exception()):
        _log.info("a Kafka producer ended with an error", action="closing", error=str(error))


# Delivers segments: the object, then the events of its captures.
#
# The order makes every crash harmless: a segment without events is never found (and the spool, if
# there is one, writes it again); an event without its segment would be parked. An event that is
# sent twice has the same uid and is stored once. A file leaves the spool after Kafka has
# acknowledged.

# An idempotent producer does not report that it waits: after so long we log it.
_SLOW_SECONDS = 5.0


class Store(Protocol):
    """Writes blobs; `objects.Blobs` implements it."""

    def put(self, key: StorageKey, data: bytes, *, content_type: str) -> None: ...


class Topic(Protocol):
    """Publishes events; `Publisher` implements it."""

    async def publish(self, events: Sequence[Event], *, producer: str) -> Set[int]: ...
    async def report(self, key: bytes, value: bytes) -> None: ...
    async def close(self) -> None: ...


class Deliveries:
    """Writes and publishes one segment at a time for each of its callers."""

    def __init__(
        self, store: Store, topic: Topic, counts: Counts, bucket: str, threads: Executor
    ) -> None:
        """`counts`: of our own producer."""
        self._store, self._topic, self._counts, self._bucket = store, topic, counts, bucket
        self._threads = threads
        self.object_store = _make_backoff("object store", (ObjectStoreUnavailable, OSError))
        self.kafka = _make_backoff("kafka", KAFKA_ERRORS)

    @property
    def unavailable(self) -> dict[str, str]:
        """The servers that deliveries wait for, and why."""
        return self.object_store.unavailable | self.kafka.unavailable

    async def deliver(self, item: Segment | Spooled) -> None:
        """Put a segment and publish its events, however long that takes, and count them."""
        counts = item.folder.counts if isinstance(item, Spooled) else self._counts
        missing = "torn"
        try:
            upload = partial(self._upload, item, counts)
            contents, described = await self.object_store.retry(upload)
            publish = partial(self._publish, contents, described, counts.producer)
            refused = await self.kafka.retry(publish)
        except Exception as error:  # waiting would not help: drop this one, the others continue
            # Only its class: the text of an error may contain captured data.
            _log.error("a segment is dropped", action="capture_dropped", error=type(error).__name__)
            contents, refused, missing = Contents(), frozenset(), "unreadable"
        settle = partial(_settle, item, counts, contents, refused, missing)
        if isinstance(item, Segment):  # at once: what is in hand at the end goes to the spool
            settle()
        else:
            await asyncio.get_running_loop().run_in_executor(self._threads, settle)
        self._threads.submit(counts.store)

    async def _upload(self, item: Segment | Spooled, counts: Counts) -> tuple[Contents, bytes]:
        """Write the object, in a thread; return what it holds, and what its events say of it."""
        with stage(CAPTURE_SECONDS, "upload"):
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._threads, self._put, item, counts)

    def _put(self, item: Segment | Spooled, counts: Counts) -> tuple[Contents, bytes]:
        if isinstance(item, Spooled) or not item.key:
            raw = item.read() if isinstance(item, Spooled) else item.tar
            contents = read_segment(raw)
            tar = cut_segment(raw, contents) if contents.key else b""
        else:
            tar = item.tar
            sequences = {event.sequence for event in item.events}
            contents = Contents(item.key, len(tar), item.captures, sequences, item.events)
        for blob in contents.objects:
            key = StorageKey(self._bucket, blob.key)
            self._store.put(key, blob.data, content_type=blob.content_type)
        if contents.key:
            key = StorageKey(self._bucket, contents.key)
            self._store.put(key, tar, content_type=CONTENT_TYPE)
            SEGMENTS.inc()
        counts.store()  # before its events are known
        return contents, describe_segment(tar, contents.captures) if contents.key else b""

    async def _publish(self, contents: Contents, described: bytes, producer: str) -> Set[int]:
        at = rfc3339(datetime.now(UTC))
        events = [
            Event(event.sequence, event.key, stamp_event(event.value, at, described))
            for event in contents.events
        ]
        if not events:
            return frozenset()
        work = asyncio.ensure_future(self._topic.publish(events, producer=producer))
        with stage(CAPTURE_SECONDS, "publish"), self.kafka.waiting() as reasons:
            try:
                while not (await asyncio.wait({work}, timeout=_SLOW_SECONDS))[0]:
                    self.kafka.note(reasons, "kafka", "no acknowledgement yet", _SLOW_SECONDS)
                return await work
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if task is not None and task.cancelling():
                    raise
                # not our cancellation: the client gave its connection up
                raise ConnectionError("the message was given up by the client") from None
            finally:
                work.cancel()


def _settle(
    item: Segment | Spooled, counts: Counts, contents: Contents, refused: Set[int], missing: str
) -> None:
    """Count what became of a segment; `missing`: why exchanges are not in its contents."""
    if isinstance(item, Spooled):
        item.folder.remove(item)
    if lost := item.exchanges - len(contents.sequences):
        counts.drop(missing, lost)
        if missing == "torn":
            _log.warning(
                "a segment in the spool is torn", action="spool_torn", producer=counts.producer
            )
    if refused:
        _log.error("Kafka refuses events", action="capture_dropped", count=len(refused))
        counts.drop("refused", len(refused))
    published = [event for event in contents.events if event.sequence not in refused]
    counts.publish(len(contents.sequences - refused), len(published))


def _make_backoff(server: Server, expected: tuple[type[BaseException], ...]) -> Backoff:
    return Backoff(
        lambda error: server if isinstance(error, expected) else None,
        lambda _: CAPTURE_TROUBLE.labels(server).inc(),
        first_seconds=0.2,
        longest_seconds=2.0,  # so that what waits is tried again within the time of a stop
    )


# Longest wait for an acknowledgement.
_SECONDS = 5.0


class Reporting:
    """Sends reports, one at a time: none is sent while another waits for Kafka."""

    def __init__(self, topic: Topic, counts: Counts, spools: Spools) -> None:
        self._topic, self._counts, self._spools = topic, counts, spools
        self._waiting: asyncio.Task[None] | None = None

    async def report_all(self, *, final: bool = False, seconds: float = _SECONDS) -> bool:
        """Report on every producer, within `seconds` each; close a spool after its last report.
        Return whether Kafka took the one on our own, which is final if we end.

        If it did not, the numbers in the spool's lock tell the process that adopts it the same.
        """
        if not await self._send(self._counts, final, seconds):
            return False
        for folder in self._spools.adopted:
            is_settled = folder.counts.queued <= 0
            is_final = is_settled and folder.counts.has_ended
            if not await self._send(folder.counts, is_final, seconds):
                break
            if is_settled:
                await asyncio.to_thread(self._spools.close_adopted, folder)
        return True

    async def _send(self, counts: Counts, final: bool, seconds: float) -> bool:
        """Send a report; return whether Kafka took it in time. If not, it may arrive later as an
        old one: it is not cancelled, because an idempotent producer would keep it anyway."""
        try:
            async with asyncio.timeout(seconds):
                if self._waiting is not None:
                    await asyncio.wait({self._waiting})
                report = counts.report(final=final)
                await asyncio.to_thread(counts.store)
                sending = self._topic.report(report.producer.encode(), encode_report(report))
                task = self._waiting = asyncio.create_task(sending)
                await asyncio.wait({task})
        except TimeoutError:
            return False
        error = ConnectionError("given up") if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, KAFKA_ERRORS):
            raise error
        if error is not None:
            _log.warning("a report waits", action="reporting", error=str(error)[:500])
        return error is None

    def cancel(self) -> None:
        """Stop waiting for an acknowledgement."""
        if self._waiting is not None:
            self._waiting.cancel()
