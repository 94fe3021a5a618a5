"""Publishes events and reports to Kafka with an idempotent producer."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Literal, TypeAlias, TypeVar

import structlog
from aiokafka import AIOKafkaProducer
from aiokafka.errors import (
    KafkaError,
    MessageSizeTooLargeError,
    ProducerClosed,
    RecordTooLargeError,
)

from inference_store.platform.kafka import client_arguments
from inference_store.platform.log_throttle import throttle_logs
from inference_store.platform.metrics import CAPTURE_TROUBLE
from inference_store.platform.settings import KafkaSettings

from .prepared_capture import Message

Server: TypeAlias = Literal["object store", "kafka"]
SERVERS: Sequence[Server] = ("object store", "kafka")
_LONGEST_SECONDS = 10.0
_log = structlog.get_logger()
T = TypeVar("T")


class Backoff:
    """The retries against one server: as soon as one call succeeds, all that wait try again."""

    def __init__(
        self, server: Server, expected: tuple[type[BaseException], ...], *, first_seconds: float
    ) -> None:
        self._server: Server = server
        self._expected = expected
        self._first = first_seconds
        self._back = asyncio.Event()
        self.unavailable: str | None = None
        """Why work waits for the server; None if none does."""

    async def retry(self, work: Callable[[], Awaitable[T]]) -> T:
        """Return the work's result, however long it takes. Raises only unexpected errors."""
        wait = self._first
        while True:
            try:
                result = await work()
            except self._expected as error:
                self.note_failure(f"{type(error).__name__}: {error}", wait)
            else:
                self.note_success()
                return result
            await self._pause(wait)
            wait = min(wait * 2, _LONGEST_SECONDS)

    def note_failure(self, why: str, seconds: float) -> None:
        """Note that the server does not answer."""
        CAPTURE_TROUBLE.labels(self._server).inc()
        if self.unavailable is None:
            _log.warning(
                "a server is unavailable",
                action="waiting",
                server=self._server,
                error=why[:500],
                seconds=seconds,
            )
        self.unavailable = why[:500]

    def note_success(self) -> None:
        """Note that the server answers."""
        if self.unavailable is not None:
            _log.info("a server is available again", action="going_on", server=self._server)
            self.unavailable = None
            self._back.set()
            self._back.clear()

    async def find_reason(self) -> str | None:
        """Return why captures wait, for the admin port; None if they do not."""
        return self.unavailable

    async def _pause(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self._back.wait(), seconds)
        except TimeoutError:
            return


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
