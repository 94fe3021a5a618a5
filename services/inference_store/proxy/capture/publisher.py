"""Events and reports to Kafka, by an idempotent producer."""

import asyncio
from collections.abc import Sequence

import structlog
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError, MessageSizeTooLargeError, RecordTooLargeError

from inference_store.store.kafka import client_arguments
from inference_store.store.repeats import say_less
from inference_store.store.settings import KafkaSettings

from .prepared import Message

AWAY = (KafkaError, OSError)
"""What is raised while Kafka cannot be reached, or cannot take it now."""
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
        self._starting = asyncio.Lock()

    async def publish(self, messages: Sequence[Message], *, producer: str, sequence: int) -> None:
        """Send an exchange's events; returns when all are acknowledged.

        Raises Refused, or one of AWAY. An idempotent producer tries by itself as long as the
        broker is away, so it may take as long as that.
        """
        headers = [("producer", producer.encode()), ("sequence", b"%d" % sequence)]
        topic = self._settings.kafka_topic
        kafka = await self._started()
        try:
            waiting = [
                await kafka.send(topic, each.value, key=each.key, headers=headers)
                for each in messages
            ]
            await asyncio.gather(*waiting)
        except (MessageSizeTooLargeError, RecordTooLargeError) as error:
            raise Refused(str(error)) from error
        except KafkaError as error:
            if not error.retriable:  # such a producer may refuse everything from now on
                await self._discard(kafka)
            raise

    async def report(self, key: bytes, value: bytes) -> None:
        """Send a report; returns when it is acknowledged. Raises one of AWAY."""
        kafka = await self._started()
        await kafka.send_and_wait(self._settings.kafka_reports_topic, value, key=key)

    async def close(self) -> None:
        """Stop; what is not acknowledged within a few seconds is given up."""
        if self._producer is not None:
            await self._discard(self._producer)

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
            return self._producer

    async def _discard(self, producer: AIOKafkaProducer) -> None:
        if self._producer is producer:
            self._producer = None
            await _stopped(producer)


async def _stopped(producer: AIOKafkaProducer) -> None:
    stopping = asyncio.ensure_future(producer.stop())
    done, _ = await asyncio.wait({stopping}, timeout=_STOP_SECONDS)
    if not done:
        stopping.cancel()
        await asyncio.wait({stopping}, timeout=1.0)
    if stopping.done() and not stopping.cancelled() and (error := stopping.exception()):
        _log.info("a Kafka producer ended with an error", action="closing", error=str(error))
