"""Reads the topics: joins the group, follows the assignment of partitions, and polls.

After every assignment the consumer seeks the position that Postgres has; it reads nothing before.
By its name alone a topic that was deleted and created cannot be distinguished from the old one
after it has grown past that position, so Kafka is asked for the topic's id. aiokafka (0.14)
requests metadata in a version without ids, so a newer version is defined here. Kafka before 3.1
does not have it, and is not asked.
"""

import asyncio
import re
import socket
from collections import defaultdict
from collections.abc import Iterable, Sequence
from io import BytesIO
from math import inf
from uuid import UUID

import structlog
from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, ConsumerRecord, TopicPartition
from aiokafka.client import AIOKafkaClient, ConnectionGroup
from aiokafka.errors import (
    IllegalStateError,
    IncompatibleBrokerVersion,
    KafkaError,
)
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import (
    AbstractType,
    Boolean,
    CompactArray,
    CompactString,
    Int16,
    Int32,
    Schema,
    TaggedFields,
)
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.ingester import record_batches
from inference_store.ingester.batch import (
    AssignedPartition,
    OffsetRange,
    OffsetsWentBack,
    Positions,
)
from inference_store.platform.kafka import list_topics, start_client
from inference_store.platform.metrics import ASSIGNED, TROUBLE
from inference_store.platform.settings import IngesterSettings
from inference_store.platform.traces import throttle_logs

_METADATA, _VERSION = 3, 12
_FETCH_BYTES = 4 * 1024 * 1024
# The longest wait for new messages.
_POLL_MILLISECONDS = 500
# How often a broker is asked for a sign of life while no records arrive, and for how long:
# aiokafka itself would wait for 40, and say nothing.
_ASK_SECONDS = 5.0
# How often partitions are counted: a new or larger topic is noticed within this time.
_METADATA_SECONDS = 5
# How often a topic of ground truth that is missing is looked for.
_LOOK_SECONDS = 10.0
# How long a partition waits after its broker did not answer: each try delays the others.
_SEEK_SECONDS = 30.0
# aiokafka repeats a commit as long as no broker answers: it must not delay the pipeline.
_COMMIT_SECONDS = 5.0
_log = structlog.get_logger()


class KafkaConsumer(ConsumerRebalanceListener):  # type: ignore[misc]
    """A consumer of events and of ground truth: its assigned partitions, and the records polled."""

    def __init__(self, settings: IngesterSettings, engine: AsyncEngine) -> None:
        self._settings = settings
        self._engine = engine
        self._assigned: dict[TopicPartition, AssignedPartition] = {}
        self._joined: Positions | None = None
        self._committed_at = self._looked_at = 0.0
        self._heard_at = 0.0
        self._ids: dict[str, frozenset[UUID]] = {}

    @property
    def assigned(self) -> Sequence[AssignedPartition]:
        """The partitions that are assigned now."""
        return tuple(self._assigned.values())

    @property
    def _kafka(self) -> AIOKafkaConsumer:
        return self._positions.kafka

    @property
    def _positions(self) -> Positions:
        if self._joined is None:
            raise KafkaError("not connected")
        return self._joined

    async def start(self) -> None:
        """Connect and join the group. Raises KafkaError if no broker answers."""
        throttle_logs("aiokafka")
        consumer = record_batches.make_consumer(
            self._settings,
            group_id=self._settings.kafka_group,
            group_instance_id=name_instance(self._settings),
            heartbeat_interval_ms=500,
            session_timeout_ms=10_000,
            max_poll_interval_ms=600_000,
            max_partition_fetch_bytes=_FETCH_BYTES,
            metadata_max_age_ms=_METADATA_SECONDS * 1000,
        )
        events, truth = self._settings.kafka_topic, self._settings.kafka_truth_topic
        # with a topic that does not exist it would not start
        there = {truth} & await list_topics(self._settings) if truth else set()
        consumer.subscribe([events, *there], listener=self)
        if truth and not there:
            _log.warning("no ground truth is read: its topic is missing", topic=truth)
        try:
            await start_client(consumer, self._settings)
        except BaseException:
            await record_batches.close_consumer(consumer)
            raise
        self._joined = Positions(self._settings, self._engine, consumer)

    async def stop(self) -> None:
        """Leave the group, and revoke all partitions: aiokafka calls no listener here."""
        if self._joined is not None:
            joined, self._joined = self._joined, None
            try:
                await record_batches.close_consumer(joined.kafka)
            finally:
                self.on_partitions_revoked(list(self._assigned))

    def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        """Add partitions that Kafka assigned; they are read once their positions are found."""
        for tp in assigned:
            self._assigned[tp] = AssignedPartition(tp)
        ASSIGNED.set(len(self._assigned))

    def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        """Remove partitions that Kafka revoked, and drop their in-flight records."""
        for tp in revoked:
            assigned = self._assigned.pop(tp, None)
            if assigned is not None:
                assigned.is_revoked = True
        ASSIGNED.set(len(self._assigned))

    def reset(self, assigned: AssignedPartition) -> None:
        """Drop the in-flight records of a partition, and find its position again."""
        assigned.is_revoked = True
        tp = assigned.tp
        if self._assigned.get(tp) is assigned:
            self._assigned[tp] = AssignedPartition(tp)

    async def poll(self) -> list[OffsetRange]:
        """Return the next records of every assigned partition; empty if there are none.

        A partition whose broker is unavailable does not delay the others. Raises KafkaError if all
        brokers are unavailable.
        """
        await self._look_for_truth()
        await self._seek_due()
        try:
            return await self._poll_ranges()
        except BaseException:
            # Records that were fetched may be lost to us now, and would look like a gap.
            self._reset_all()
            raise

    async def _look_for_truth(self) -> None:
        """Read ground truth too, once its topic is there: it asks for all topics, because asking
        for one could create it."""
        events, truth = self._settings.kafka_topic, self._settings.kafka_truth_topic
        if not truth or truth in self._kafka.subscription():
            return
        now = asyncio.get_running_loop().time()
        if now - self._looked_at >= _LOOK_SECONDS:
            self._looked_at = now
            async with record_batches.require_answer("a broker", _ASK_SECONDS):
                if truth in await self._kafka.topics():
                    self._kafka.subscribe([events, truth], listener=self)

    async def _seek_due(self) -> None:
        """Seek the partitions that are due; raises KafkaError if none is readable afterwards."""
        due = self._find_due()
        if not due:
            return
        try:
            is_new = await self._is_new_topic(due)
            # Some may have been revoked or assigned meanwhile.
            due = [tp for tp in self._find_due() if is_new or tp in due]
            seeks = [self._positions.seek(tp, self._assigned[tp]) for tp in due]
            results = await asyncio.gather(*seeks, return_exceptions=True)
        except KafkaError as error:
            results = [error] * len(due)
        failures = {
            tp: result for tp, result in zip(due, results, strict=True) if result is not None
        }
        for failure in failures.values():
            if not isinstance(failure, KafkaError) or not self._has_readable():
                raise failure
        for tp, failure in failures.items():
            self._postpone_seek(tp, failure)

    def _find_due(self) -> list[TopicPartition]:
        now = asyncio.get_running_loop().time() if self._has_readable() else inf
        return [
            tp
            for tp, assigned in self._assigned.items()
            if assigned.partition_id is None and assigned.seek_at <= now
        ]

    def _has_readable(self) -> bool:
        return any(assigned.partition_id is not None for assigned in self.assigned)

    def _postpone_seek(self, tp: TopicPartition, error: BaseException) -> None:
        if tp in self._assigned:
            self._assigned[tp].seek_at = asyncio.get_running_loop().time() + _SEEK_SECONDS
        TROUBLE.labels("kafka").inc()
        _log.warning(
            "a partition waits for its broker",
            action="waiting",
            server="kafka",
            partition=tp.partition,
            error=str(error),
            seconds=_SEEK_SECONDS,
        )

    def _reset_all(self) -> None:
        for assigned in self.assigned:
            self.reset(assigned)

    async def _is_new_topic(self, partitions: Iterable[TopicPartition]) -> bool:
        """Check whether a topic has another id than before; if so, reset every partition.

        Ask only the leaders of `partitions`: another that is unavailable must not matter to them.

        Call it before a seek, and after records arrived or markers were passed: all records in
        between are then of the topic in which the positions were found.
        """
        ids = await find_topic_ids(self._kafka, partitions)
        if ids.items() <= self._ids.items():
            return False
        self._ids |= ids
        self._reset_all()
        return True

    async def _poll_ranges(self) -> list[OffsetRange]:
        try:
            polled = await self._kafka.getmany(
                timeout_ms=_POLL_MILLISECONDS, max_records=self._settings.ingester_batch_events
            )
        except IllegalStateError as error:  # a rebalance in between
            raise KafkaError(f"{type(error).__name__}: {error}") from error
        await self._check_broker(has_records=bool(polled))
        ranges = [await self._build_range(tp, records) for tp, records in polled.items()]
        idle = [(tp, assigned) for tp, assigned in self._assigned.items() if tp not in polled]
        ranges += [await self._positions.build_passed_range(tp, assigned) for tp, assigned in idle]
        present = [offset_range for offset_range in ranges if offset_range is not None]
        read = [offset_range.assigned.tp for offset_range in present]
        return [] if read and await self._is_new_topic(read) else present

    async def _build_range(
        self, tp: TopicPartition, records: Sequence[ConsumerRecord]
    ) -> OffsetRange | None:
        assigned = self._assigned.get(tp)
        if assigned is None:
            return None
        try:
            return await self._positions.build_range(tp, assigned, records)
        except OffsetsWentBack:
            self.reset(assigned)
            return None

    async def _check_broker(self, *, has_records: bool) -> None:
        """Raise KafkaError if no broker answers: aiokafka itself would stay silent."""
        now = asyncio.get_running_loop().time()
        if not has_records:
            if now - self._heard_at < _ASK_SECONDS:
                return
            async with record_batches.require_answer("a broker", _ASK_SECONDS):
                await self._kafka.topics()
        self._heard_at = now

    async def find_ends(self) -> dict[AssignedPartition, int]:
        """Return the end offset of each readable partition. Raises KafkaError."""
        readable = {
            tp: assigned
            for tp, assigned in self._assigned.items()
            if assigned.partition_id is not None
        }
        if not readable:
            return {}
        ends = await self._kafka.end_offsets(list(readable))
        return {readable[tp]: end for tp, end in ends.items()}

    async def commit(self, ranges: Iterable[OffsetRange]) -> None:
        """Commit the offsets to Kafka, at most once a second: lag tools read them there."""
        now = asyncio.get_running_loop().time()
        if now - self._committed_at < 1.0:
            return
        offsets = {s.assigned.tp: s.hi for s in ranges}
        self._committed_at = now
        try:
            async with asyncio.timeout(_COMMIT_SECONDS):
                await self._kafka.commit(offsets)
        except (KafkaError, IllegalStateError, TimeoutError) as error:
            # The offsets in Postgres are those that count.
            _log.debug("kafka commit refused", action="kafka_commit", error=str(error))


def name_instance(settings: IngesterSettings) -> str | None:
    """Return the name by which Kafka recognises an ingester that was killed and restarted.

    It gets its partitions at once, not only after the old session ends. Two ingesters with one name
    would take them from each other. A port of a host belongs to one process, so its number makes
    the name unique.
    """
    if settings.ingester_instance or not settings.ingester_admin_port:
        return settings.ingester_instance or None
    host = re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname())[:200]
    return f"{host}-{settings.ingester_admin_port}"


_NO_ID = UUID(int=0)
_ANSWER_SECONDS = 5.0


class _Uuid(AbstractType):  # type: ignore[misc]
    @classmethod
    def encode(cls, value: UUID) -> bytes:
        return value.bytes

    @classmethod
    def decode(cls, data: BytesIO) -> UUID:
        return UUID(bytes=data.read(16))


class _Metadata(Response):  # type: ignore[misc]
    """The answer about one topic, up to its id: what follows is not read."""

    API_KEY, API_VERSION = _METADATA, _VERSION
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "brokers",
            CompactArray(
                ("node_id", Int32),
                ("host", CompactString("utf-8")),
                ("port", Int32),
                ("rack", CompactString("utf-8")),
                ("tags", TaggedFields),
            ),
        ),
        ("cluster_id", CompactString("utf-8")),
        ("controller_id", Int32),
        (
            "topics",
            CompactArray(
                ("error_code", Int16),
                ("name", CompactString("utf-8")),
                ("topic_id", _Uuid),
            ),
        ),
    )


class _MetadataRequestV12(RequestStruct):  # type: ignore[misc]
    API_KEY, API_VERSION = _METADATA, _VERSION
    FLEXIBLE_VERSION = True
    RESPONSE_TYPE = _Metadata
    SCHEMA = Schema(
        (
            "topics",
            CompactArray(
                ("topic_id", _Uuid), ("name", CompactString("utf-8")), ("tags", TaggedFields)
            ),
        ),
        ("allow_auto_topic_creation", Boolean),
        ("include_topic_authorized_operations", Boolean),
        ("tags", TaggedFields),
    )


class _MetadataRequest(Request[_MetadataRequestV12]):  # type: ignore[misc]
    API_KEY = _METADATA

    def __init__(self, topic: str) -> None:
        self._topic = topic

    def build(self, request_struct_class: type[_MetadataRequestV12]) -> _MetadataRequestV12:
        return request_struct_class([(_NO_ID, self._topic, {})], False, False, {})


async def find_topic_ids(
    kafka: AIOKafkaConsumer, partitions: Iterable[TopicPartition]
) -> dict[str, frozenset[UUID]]:
    """Return the ids of topics according to the leaders of partitions; none if one does not exist.

    There are two while it is being created again, and none if the brokers are too old. A leader
    that does not answer is left out; raises KafkaError if none answers.
    """
    client = kafka._client  # the consumer offers no other way to send a request of one's own
    leaders = {(client.cluster.leader_for_partition(tp), tp.topic) for tp in partitions}
    ids: defaultdict[str, set[UUID]] = defaultdict(set)
    failure: KafkaError | None = None
    for node, topic in leaders:
        if node in (None, -1):
            continue
        try:
            answer = await _ask(client, node, topic)
        except (IncompatibleBrokerVersion, NotImplementedError):
            continue
        except KafkaError as error:
            failure = error
            continue
        ids[topic] |= {entry[2] for entry in answer.topics if entry[0] == 0} - {_NO_ID}
    if failure is not None and not ids:
        raise failure
    return {topic: frozenset(of_topic) for topic, of_topic in ids.items() if of_topic}


async def _ask(client: AIOKafkaClient, node: int, topic: str) -> _Metadata:
    async with record_batches.require_answer(f"broker {node}", _ANSWER_SECONDS):
        # Not on the connection of the fetches: there it would wait for a fetch to end.
        answer: _Metadata = await client.send(
            node, _MetadataRequest(topic), group=ConnectionGroup.COORDINATION
        )
        return answer
