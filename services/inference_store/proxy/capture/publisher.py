"""Events and reports to Kafka, by an idempotent producer."""

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
from inference_store.platform.repeats import say_less
from inference_store.platform.settings import KafkaSettings

from .prepared import Message

AWAY = (KafkaError, OSError)
"""What is raised while Kafka cannot be reached, or cannot take it now."""
_TOO_LARGE = (MessageSizeTooLargeError, RecordTooLargeError)
_STOP_SECONDS = 3.0
_LINGER_MILLISECONDS = 5
_log = structlog.get_logger()


class Refused(Exception):
    """Kafka will never take this event."""


class Publisher:
    """A producer that is made when it is needed, and anew where it is of no use any more."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._producer: AIOKafkaProducer | None = None
        self._given_up: dict[AIOKafkaProducer, asyncio.Event] = {}
        self._starting = asyncio.Lock()

    async def publish(self, messages: Sequence[Message], *, producer: str, sequence: int) -> None:
        """Send an exchange's events; returns when all are acknowledged.

        Raises Refused, or one of AWAY. An idempotent producer tries by itself as long as the
        broker is away, so it may take as long as that.
        """
        headers = [("producer", producer.encode()), ("sequence", b"%d" % sequence)]
        topic = self._settings.kafka_topic
        kafka = await self._started()

        async def all_sent() -> None:
            waiting = [
                await kafka.send(topic, each.value, key=each.key, headers=headers)
                for each in messages
            ]
            await asyncio.gather(*waiting)

        try:
            await self._acknowledged(kafka, all_sent())
        except _TOO_LARGE as error:
            raise Refused(str(error)) from error

    async def report(self, key: bytes, value: bytes) -> None:
        """Send a report; returns when it is acknowledged. Raises one of AWAY."""
        kafka = await self._started()
        topic = self._settings.kafka_reports_topic
        await self._acknowledged(kafka, kafka.send_and_wait(topic, value, key=key))

    async def close(self) -> None:
        """Stop; what is not acknowledged within a few seconds is given up."""
        if self._producer is not None:
            await self._discard(self._producer)

    async def _acknowledged(
        self, kafka: AIOKafkaProducer, sending: Coroutine[Any, Any, object]
    ) -> None:
        """Wait for it. A producer that is given up meanwhile raises ProducerClosed: what it still
        holds then is never answered."""
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
            if not error.retriable:  # such a producer may refuse everything from now on
                await self._discard(kafka)
            raise
        finally:
            work.cancel()
            end.cancel()

    async def _started(self) -> AIOKafkaProducer:
        async with self._starting:
            if self._producer is None:
                say_less("aiokafka")
                made = AIOKafkaProducer(
                    **client_arguments(self._settings),
                    enable_idempotence=True,
                    acks="all",
                    linger_ms=_LINGER_MILLISECONDS,
                )
                try:
                    await made.start()
                except BaseException:
                    await _stopped(made)
                    raise
                self._producer = made
                self._given_up[made] = asyncio.Event()
            return self._producer

    async def _discard(self, producer: AIOKafkaProducer) -> None:
        if self._producer is producer:
            self._producer = None
            try:
                await _stopped(producer)
            finally:
                self._given_up.pop(producer).set()


async def _stopped(producer: AIOKafkaProducer) -> None:
    stopping = asyncio.ensure_future(producer.stop())
    done, _ = await asyncio.wait({stopping}, timeout=_STOP_SECONDS)
    if not done:
        stopping.cancel()
        await asyncio.wait({stopping}, timeout=1.0)
    if stopping.done() and not stopping.cancelled() and (error := stopping.exception()):
        _log.info("a Kafka producer ended with an error", action="closing", error=str(error))
