"""The id that Kafka gave to a topic; it is another one after the topic was deleted and created.

By its name alone a new topic cannot be distinguished from the old one after it has grown past the
offset at which reading continues. aiokafka (0.14) requests metadata in a version without ids, so a
newer version is defined here. Kafka before 3.1 does not have it, and is not asked.
"""

import asyncio
from collections.abc import Iterable
from io import BytesIO
from uuid import UUID

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.client import AIOKafkaClient, ConnectionGroup
from aiokafka.errors import IncompatibleBrokerVersion, KafkaError, KafkaTimeoutError
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

_METADATA, _VERSION = 3, 12
_NO_ID = UUID(int=0)
# aiokafka itself would wait for 40: meanwhile nothing else is read.
_ANSWER_SECONDS = 5.0


class _Uuid(AbstractType):  # type: ignore[misc]
    @classmethod
    def encode(cls, value: UUID) -> bytes:
        return value.bytes

    @classmethod
    def decode(cls, data: BytesIO) -> UUID:
        return UUID(bytes=data.read(16))


class _Metadata(Response):  # type: ignore[misc]
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
                ("is_internal", Boolean),
                (
                    "partitions",
                    CompactArray(
                        ("error_code", Int16),
                        ("partition_index", Int32),
                        ("leader_id", Int32),
                        ("leader_epoch", Int32),
                        ("replica_nodes", CompactArray(Int32)),
                        ("isr_nodes", CompactArray(Int32)),
                        ("offline_replicas", CompactArray(Int32)),
                        ("tags", TaggedFields),
                    ),
                ),
                ("authorized_operations", Int32),
                ("tags", TaggedFields),
            ),
        ),
        ("tags", TaggedFields),
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
    kafka: AIOKafkaConsumer, topic: str, partitions: Iterable[TopicPartition]
) -> frozenset[UUID]:
    """Return the ids of a topic according to the leaders of partitions; none if it does not exist.

    There are two while it is being created again, and none if the brokers are too old. A leader
    that does not answer is left out; raises KafkaError if none answers.
    """
    client = kafka._client  # the consumer offers no other way to send a request of one's own
    leaders = {client.cluster.leader_for_partition(tp) for tp in partitions} - {None, -1}
    ids: set[UUID] = set()
    failure: KafkaError | None = None
    for node in leaders:
        try:
            answer = await _ask(client, node, topic)
        except (IncompatibleBrokerVersion, NotImplementedError):
            continue
        except KafkaError as error:
            failure = error
            continue
        ids.update(entry[2] for entry in answer.topics if entry[0] == 0)
    if failure is not None and not ids:
        raise failure
    return frozenset(ids - {_NO_ID})


async def _ask(client: AIOKafkaClient, node: int, topic: str) -> _Metadata:
    """Return a broker's answer. Raises KafkaError, also if it is too slow."""
    try:
        async with asyncio.timeout(_ANSWER_SECONDS):
            # Not on the connection of the fetches: there it would wait for a fetch to end.
            answer: _Metadata = await client.send(
                node, _MetadataRequest(topic), group=ConnectionGroup.COORDINATION
            )
            return answer
    except TimeoutError as error:
        raise KafkaTimeoutError(
            f"broker {node} does not answer within {_ANSWER_SECONDS:g} s"
        ) from error
