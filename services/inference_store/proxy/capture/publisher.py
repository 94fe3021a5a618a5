"""Publishes events and reports to Kafka with an idempotent producer, after the objects of the
events."""

import asyncio
from collections.abc import Coroutine, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from math import inf
from typing import Any, Literal, Protocol, TypeAlias

import structlog
from aiokafka import AIOKafkaProducer
from aiokafka.errors import (
    KafkaError,
    MessageSizeTooLargeError,
    ProducerClosed,
    RecordTooLargeError,
)

from inference_store.inference.errors import ObjectStoreUnavailable
from inference_store.inference.events import StorageKey
from inference_store.inference.events.wire import rfc3339
from inference_store.inference.producer_reports import ProducerReport
from inference_store.inference.producer_reports import encode as encode_report
from inference_store.platform.backoff import Backoff
from inference_store.platform.kafka import client_arguments
from inference_store.platform.metrics import CAPTURE_SECONDS, CAPTURE_TROUBLE
from inference_store.platform.settings import KafkaSettings
from inference_store.platform.traces import stage, throttle_logs
from inference_store.proxy.capture.counts import Budget, Counts
from inference_store.proxy.capture.prepared_capture import (
    Message,
    PreparedCapture,
    set_published_at,
)
from inference_store.proxy.capture.spool import Folder, Spooled, Spools

Server: TypeAlias = Literal["object store", "kafka"]
SERVERS: Sequence[Server] = ("object store", "kafka")
_log = structlog.get_logger()

KAFKA_ERRORS = (KafkaError, OSError)
"""Errors that mean that Kafka is unavailable, or cannot accept a message now."""
_TOO_LARGE = (MessageSizeTooLargeError, RecordTooLargeError)
_STOP_SECONDS = 3.0
_LINGER_MILLISECONDS = 5


class MessageRefused(Exception):
    """Kafka will never take this event."""


class Publisher:
    """A producer that is created when it is needed, and again after it has failed for good."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._producer: AIOKafkaProducer | None = None
        self._given_up: dict[AIOKafkaProducer, asyncio.Event] = {}
        self._starting = asyncio.Lock()

    async def publish(self, messages: Sequence[Message], *, producer: str, sequence: int) -> None:
        """Send an exchange's events; returns when all are acknowledged.

        Raises MessageRefused, or one of KAFKA_ERRORS. An idempotent producer retries by itself as
        long as the broker is unavailable, so it may take as long as that.
        """
        headers = [("producer", producer.encode()), ("sequence", b"%d" % sequence)]
        topic = self._settings.kafka_topic
        kafka = await self._start_producer()

        async def send_all() -> None:
            waiting = [
                await kafka.send(topic, message.value, key=message.key, headers=headers)
                for message in messages
            ]
            await asyncio.gather(*waiting)

        try:
            await self._await_acknowledgement(kafka, send_all())
        except _TOO_LARGE as error:
            raise MessageRefused(str(error)) from error

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
        end = asyncio.ensure_future(self._given_up[kafka].wait())
        try:
            await asyncio.wait({work, end}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                raise ProducerClosed
            await work
        except _TOO_LARGE:
            raise
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
                )
                try:
                    await producer.start()
                except BaseException:
                    await _stop_producer(producer)
                    raise
                self._producer = producer
                self._given_up[producer] = asyncio.Event()
            return self._producer

    async def _discard(self, producer: AIOKafkaProducer) -> None:
        if self._producer is producer:
            self._producer = None
            try:
                await _stop_producer(producer)
            finally:
                self._given_up.pop(producer).set()


async def _stop_producer(producer: AIOKafkaProducer) -> None:
    stopping = asyncio.ensure_future(producer.stop())
    done, _ = await asyncio.wait({stopping}, timeout=_STOP_SECONDS)
    if not done:
        stopping.cancel()
        await asyncio.wait({stopping}, timeout=1.0)
    if stopping.done() and not stopping.cancelled() and (error := stopping.exception()):
        _log.info("a Kafka producer ended with an error", action="closing", error=str(error))


# Sends prepared captures: blobs, then events.
#
# The order makes every crash harmless: blobs without an event are never found (and the spool, if
# there is one, writes them again); an event without its blobs would be parked. An event that is
# sent twice has the same uid and is stored once. A file leaves the spool after Kafka has
# acknowledged.

# An idempotent producer does not report that it waits: after so long we log it.
_SLOW_SECONDS = 5.0


class Store(Protocol):
    """Writes blobs; `objects.Blobs` implements it."""

    def put(self, key: StorageKey, data: bytes, *, content_type: str) -> None: ...


class Topic(Protocol):
    """Publishes events; `Publisher` implements it."""

    async def publish(
        self, messages: Sequence[Message], *, producer: str, sequence: int
    ) -> None: ...
    async def report(self, key: bytes, value: bytes) -> None: ...
    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True, eq=False)
class Held:
    """An exchange in memory, and the bytes reserved for it."""

    prepared: PreparedCapture
    counts: Counts
    reserved: int

    def release(self, budget: Budget) -> None:
        """Free its memory: it was delivered or given up."""
        budget.free(self.reserved)


class Deliveries:
    """Writes and publishes one exchange at a time for each of its callers."""

    def __init__(self, store: Store, topic: Topic, bucket: str, threads: Executor) -> None:
        self._store, self._topic, self._bucket = store, topic, bucket
        self._threads = threads
        self.object_store = _make_backoff("object store", (ObjectStoreUnavailable, OSError))
        self.kafka = _make_backoff("kafka", KAFKA_ERRORS)

    @property
    def unavailable(self) -> dict[str, str]:
        """The servers that deliveries wait for, and why."""
        return self.object_store.unavailable | self.kafka.unavailable

    async def deliver(self, item: Held | Spooled) -> None:
        """Upload and publish an exchange, however long that takes, and count it."""
        try:
            prepared = await self.object_store.retry(partial(self._upload, item))
            if prepared is None:
                return
            await self.kafka.retry(partial(self._publish, prepared))
        except MessageRefused as error:
            self._drop(item, "refused", error)
        except Exception as error:  # waiting would not help: drop this one, the others continue
            self._drop(item, "unreadable", error)
        else:
            await self._settle(item, len(prepared.messages))

    async def _upload(self, item: Held | Spooled) -> PreparedCapture | None:
        """Write the blobs, in a thread; return None for a torn file, which is counted."""
        with stage(CAPTURE_SECONDS, "upload"):
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._threads, self._put, item)

    def _put(self, item: Held | Spooled) -> PreparedCapture | None:
        prepared = item.prepared if isinstance(item, Held) else item.folder.read(item.path)
        for blob in () if prepared is None else prepared.blobs:
            key = StorageKey(self._bucket, blob.key)
            self._store.put(key, blob.data, content_type=blob.content_type)
        return prepared

    async def _publish(self, prepared: PreparedCapture) -> None:
        at = rfc3339(datetime.now(UTC))
        messages = [
            Message(message.key, set_published_at(message.value, at))
            for message in prepared.messages
        ]
        work = asyncio.ensure_future(
            self._topic.publish(messages, producer=prepared.producer, sequence=prepared.sequence)
        )
        with stage(CAPTURE_SECONDS, "publish"), self.kafka.waiting() as reasons:
            try:
                while not (await asyncio.wait({work}, timeout=_SLOW_SECONDS))[0]:
                    self.kafka.note(reasons, "kafka", "no acknowledgement yet", _SLOW_SECONDS)
                await work
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if task is not None and task.cancelling():
                    raise
                # not our cancellation: the client gave its connection up
                raise ConnectionError("the message was given up by the client") from None
            finally:
                work.cancel()

    async def _settle(self, item: Held | Spooled, events: int) -> None:
        if isinstance(item, Held):
            item.counts.publish(events)
        else:
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self._threads, _settle_spooled, item, events)

    def _drop(self, item: Held | Spooled, reason: str, error: Exception) -> None:
        # Only its class: the text of an error may contain captured data.
        _log.error(
            "an exchange is dropped",
            action="capture_dropped",
            reason=reason,
            error=type(error).__name__,
        )
        if isinstance(item, Spooled):
            item.folder.remove(item.path)
        item.counts.drop(reason)


def _make_backoff(server: Server, expected: tuple[type[BaseException], ...]) -> Backoff:
    return Backoff(
        lambda error: server if isinstance(error, expected) else None,
        lambda _: CAPTURE_TROUBLE.labels(server).inc(),
        first_seconds=0.2,
        longest_seconds=2.0,  # so that what waits is tried again within the time of a stop
    )


def _settle_spooled(item: Spooled, events: int) -> None:
    item.folder.remove(item.path)
    item.counts.publish(events)


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
