"""Publishes events and reports to Kafka with an idempotent producer."""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

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
from inference_store.platform.settings import KafkaSettings

from .prepared_capture import Message

KAFKA_ERRORS = (KafkaError, OSError)
"""Errors that mean that Kafka is unavailable, or cannot accept a message now."""
_TOO_LARGE = (MessageSizeTooLargeError, RecordTooLargeError)
_STOP_SECONDS = 3.0
_LINGER_MILLISECONDS = 5
_log = structlog.get_logger()


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
