"""Reading the topic: joining the group, what is assigned and taken away, polling.

After every assignment a partition is first placed by the books; until then nothing of it is read.
"""

import asyncio
import re
import socket
from collections.abc import Iterable, Sequence
from math import inf
from uuid import UUID

import structlog
from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, ConsumerRecord, TopicPartition
from aiokafka.errors import IllegalStateError, KafkaConnectionError, KafkaError
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.platform.kafka import client_arguments, why_away
from inference_store.platform.metrics import ASSIGNED, TROUBLE
from inference_store.platform.repeats import say_less
from inference_store.platform.settings import IngesterSettings

from .batch import Assigned, Share
from .decompression import bound_decompression
from .leaving import leave
from .positions import OffsetsWentBack, Positions
from .record_batches import read_whatever_comes
from .topic_ids import topic_ids

_FETCH_BYTES = 4 * 1024 * 1024
# While nothing comes, how often a broker is asked for a sign of life.
_ASK_SECONDS = 5.0
# How often partitions are counted: a topic that is made anew, or grows, is seen within it.
_METADATA_SECONDS = 5
# How long a partition is left alone whose broker is away: each try holds the others up.
_PLACE_SECONDS = 30.0
# aiokafka tries a commit again for as long as no broker answers: it must not hold the line up.
_COMMIT_SECONDS = 5.0
_log = structlog.get_logger()


def instance_of(settings: IngesterSettings) -> str | None:
    """By which Kafka knows an ingester that was killed again: it has its partitions at once, and
    not after the session of the one before. Two of one name would take them from each other; a
    port has one process a host, so its number tells them apart."""
    if settings.ingester_instance or not settings.ingester_admin_port:
        return settings.ingester_instance or None
    host = re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname())[:200]
    return f"{host}-{settings.ingester_admin_port}"


class _Listener(ConsumerRebalanceListener):  # type: ignore[misc]
    """Notes what Kafka gives and takes. What was taken is dropped: its rows were not written."""

    def __init__(self, topic: "Topic") -> None:
        self._topic = topic

    async def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        self._topic.revoke(revoked)

    async def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        self._topic.assign(assigned)


class Topic:
    """The topic as this ingester sees it."""

    def __init__(self, settings: IngesterSettings, engine: AsyncEngine) -> None:
        self._settings = settings
        self._engine = engine
        self._assigned: dict[TopicPartition, Assigned] = {}
        self._consumer: AIOKafkaConsumer | None = None
        self._joined: Positions | None = None
        self._committed_at = 0.0
        self._heard_at = 0.0
        self._ids: frozenset[UUID] = frozenset()

    @property
    def assigned(self) -> Sequence[Assigned]:
        """The partitions that are ours now."""
        return tuple(self._assigned.values())

    @property
    def _kafka(self) -> AIOKafkaConsumer:
        if self._consumer is None:
            raise KafkaError("not connected")
        return self._consumer

    @property
    def _positions(self) -> Positions:
        if self._joined is None:
            raise KafkaError("not connected")
        return self._joined

    async def start(self) -> None:
        """Connect and join the group. Raises KafkaError where no broker answers."""
        say_less("aiokafka")
        read_whatever_comes()
        bound_decompression()
        arguments = client_arguments(self._settings)
        consumer = AIOKafkaConsumer(
            **arguments,
            group_id=self._settings.kafka_group,
            group_instance_id=instance_of(self._settings),
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
            heartbeat_interval_ms=500,
            session_timeout_ms=10_000,
            max_poll_interval_ms=600_000,
            retry_backoff_ms=500,
            max_partition_fetch_bytes=_FETCH_BYTES,
            metadata_max_age_ms=_METADATA_SECONDS * 1000,
        )
        consumer.subscribe([self._settings.kafka_topic], listener=_Listener(self))
        try:
            await consumer.start()
        except KafkaConnectionError as error:
            await leave(consumer)
            raise KafkaConnectionError(await why_away(arguments) or str(error)) from error
        except BaseException:
            await leave(consumer)
            raise
        self._consumer = consumer
        self._joined = Positions(self._settings, self._engine, consumer)

    async def stop(self) -> None:
        """Leave the group. aiokafka does not call on_partitions_revoked here: we do."""
        if self._consumer is not None:
            consumer, self._consumer = self._consumer, None
            try:
                await leave(consumer)
            finally:
                self.revoke(list(self._assigned))

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Kafka gave us these: nothing of them is read before they are placed."""
        for tp in partitions:
            self._assigned[tp] = Assigned(tp.partition)
        ASSIGNED.set(len(self._assigned))

    def revoke(self, partitions: Iterable[TopicPartition]) -> None:
        """Kafka took these: what is in hand of them is dropped."""
        for tp in partitions:
            assigned = self._assigned.pop(tp, None)
            if assigned is not None:
                assigned.gone = True
        ASSIGNED.set(len(self._assigned))

    def look_again(self, assigned: Assigned) -> None:
        """Drop what is in hand of a partition, and place it anew from the books."""
        assigned.gone = True
        tp = TopicPartition(self._settings.kafka_topic, assigned.partition)
        if self._assigned.get(tp) is assigned:
            self._assigned[tp] = Assigned(tp.partition)

    async def poll(self) -> list[Share]:
        """The next records of every partition that is ours; empty where there are none.

        A partition whose broker is away keeps none of the others. Raises KafkaError where all
        are away.
        """
        await self._place()
        try:
            return await self._shares()
        except BaseException:
            # What was fetched may be in nobody's hands now, and would look like a gap.
            self._look_at_all_again()
            raise

    async def _place(self) -> None:
        """Place what is not; raises KafkaError where nothing is placed afterwards."""
        due = self._due()
        if not due:
            return
        try:
            anew = await self._made_anew(due)
            # meanwhile some may have been taken from us, and given to us
            due = [tp for tp in self._due() if anew or tp in due]
            places = [self._positions.place(tp, self._assigned[tp]) for tp in due]
            ends = await asyncio.gather(*places, return_exceptions=True)
        except KafkaError as error:
            ends = [error] * len(due)
        troubles = {tp: end for tp, end in zip(due, ends, strict=True) if end is not None}
        for trouble in troubles.values():
            if not isinstance(trouble, KafkaError) or not self._any_placed():
                raise trouble
        for tp, trouble in troubles.items():
            self._wait_to_place(tp, trouble)

    def _due(self) -> list[TopicPartition]:
        """What is to be placed: what just failed waits, as long as others can be read."""
        now = asyncio.get_running_loop().time() if self._any_placed() else inf
        unplaced = (tp for tp, one in self._assigned.items() if one.place is None)
        return [tp for tp in unplaced if self._assigned[tp].place_at <= now]

    def _any_placed(self) -> bool:
        return any(assigned.place is not None for assigned in self.assigned)

    def _wait_to_place(self, tp: TopicPartition, trouble: BaseException) -> None:
        if tp in self._assigned:
            self._assigned[tp].place_at = asyncio.get_running_loop().time() + _PLACE_SECONDS
        TROUBLE.labels("kafka").inc()
        _log.warning(
            "a partition waits for its broker",
            action="waiting",
            server="kafka",
            partition=tp.partition,
            error=str(trouble),
            seconds=_PLACE_SECONDS,
        )

    def _look_at_all_again(self) -> None:
        for assigned in self.assigned:
            self.look_again(assigned)

    async def _made_anew(self, partitions: Iterable[TopicPartition]) -> bool:
        """Whether the topic has another id than before: then every partition is placed anew.

        Only the leaders of `partitions` are asked: another that is away must not matter to them.

        Asked before partitions are placed and after records came, or markers were passed: what
        came in between is of the topic that they were placed in.
        """
        ids = await topic_ids(self._kafka, self._settings.kafka_topic, partitions)
        if not ids or ids == self._ids:
            return False
        self._ids = ids
        self._look_at_all_again()
        return True

    async def _shares(self) -> list[Share]:
        timeout = int(self._settings.ingester_poll_seconds * 1000)
        try:
            polled = await self._kafka.getmany(
                timeout_ms=timeout, max_records=self._settings.ingester_batch_events
            )
        except IllegalStateError as error:  # a rebalance in between
            raise KafkaError(f"{type(error).__name__}: {error}") from error
        await self._listen(bool(polled))
        shares = [await self._share(tp, records) for tp, records in polled.items()]
        idle = [(tp, one) for tp, one in self._assigned.items() if tp not in polled]
        shares += [await self._positions.passed(tp, assigned) for tp, assigned in idle]
        found = [share for share in shares if share is not None]
        topic = self._settings.kafka_topic
        read = [TopicPartition(topic, share.assigned.partition) for share in found]
        return [] if read and await self._made_anew(read) else found

    async def _share(self, tp: TopicPartition, records: Sequence[ConsumerRecord]) -> Share | None:
        assigned = self._assigned.get(tp)
        if assigned is None:
            return None
        try:
            return await self._positions.share(tp, assigned, records)
        except OffsetsWentBack:
            self.look_again(assigned)
            return None

    async def _listen(self, heard: bool) -> None:
        """Raise KafkaError where no broker answers: aiokafka itself would stay silent for ever."""
        now = asyncio.get_running_loop().time()
        if not heard:
            if now - self._heard_at < _ASK_SECONDS:
                return
            await self._kafka.topics()
        self._heard_at = now

    async def ends(self) -> dict[Assigned, int]:
        """Where the log of each partition ends that is placed. Raises KafkaError."""
        placed = {tp: one for tp, one in self._assigned.items() if one.place is not None}
        if not placed:
            return {}
        found = await self._kafka.end_offsets(list(placed))
        return {placed[tp]: end for tp, end in found.items()}

    async def commit(self, shares: Iterable[Share]) -> None:
        """Tell Kafka how far we are, at most once a second: lag tools look there."""
        now = asyncio.get_running_loop().time()
        if now - self._committed_at < 1.0:
            return
        topic = self._settings.kafka_topic
        offsets = {TopicPartition(topic, s.assigned.partition): s.hi for s in shares}
        self._committed_at = now
        try:
            async with asyncio.timeout(_COMMIT_SECONDS):
                await self._kafka.commit(offsets)
        except (KafkaError, IllegalStateError, TimeoutError) as error:
            # what counts is in Postgres
            _log.debug("kafka commit refused", action="kafka_commit", error=str(error))
