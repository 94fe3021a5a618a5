"""Inspects Kafka as an operator would: its version, the topic's settings, the ends of its logs."""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.conn import create_conn
from aiokafka.errors import (
    IncompatibleBrokerVersion,
    KafkaConnectionError,
    KafkaError,
    KafkaTimeoutError,
    NoError,
    UnknownTopicOrPartitionError,
    for_code,
)
from aiokafka.protocol.metadata import MetadataRequest

from inference_store.platform.settings import KafkaSettings

from .connection import client_arguments, find_connection_error

KAFKA_ERRORS = (KafkaError, OSError, ssl.SSLError, ValueError)
_TIMEOUT_MILLISECONDS = 8000
_FETCH = 1
_READS = 8
_READ_MILLISECONDS = 1000


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """A topic's state at the brokers.

    `settings`: the topic's own and the brokers' defaults; None if the brokers do not report them.
    """

    partitions: int
    replicas: int
    # partitions without a leader, and those with fewer replicas in sync than they have
    leaderless: int
    lagging: int
    settings: Mapping[str, str] | None


async def version(settings: KafkaSettings) -> tuple[int, str]:
    """Return the brokers' major version, and its description. Raises KafkaError, OSError.

    Brokers do not report their version, only which requests they accept.
    """
    arguments = client_arguments(settings)
    servers = arguments.pop("bootstrap_servers")
    first = str(servers).split(",", maxsplit=1)[0].strip()
    host, _, port = first.rpartition(":")
    connection = await create_conn(host.strip("[]"), int(port), **arguments)
    try:
        # aiokafka has no other place for it
        lowest, highest = (connection._versions or {}).get(_FETCH, (0, 0))
    finally:
        connection.close()
    if lowest >= 4:
        return 4, "4 or newer"
    return (3, "3") if highest >= 12 else (2, "older than 3")


async def topic(settings: KafkaSettings) -> TopicSettings | None:
    """Return the topic of the settings; None if it does not exist. Raises KafkaError, OSError."""
    admin = AIOKafkaAdminClient(
        **client_arguments(settings), request_timeout_ms=_TIMEOUT_MILLISECONDS
    )
    try:
        await _start(admin, settings)
        partitions = await _read_partitions(admin, settings.kafka_topic)
        if partitions is None:
            return None
        return _build_settings(partitions, await _read_settings(admin, settings.kafka_topic))
    finally:
        await admin.close()


async def _read_partitions(admin: AIOKafkaAdminClient, name: str) -> list[Any] | None:
    """Return a topic's partitions; None if it does not exist. aiokafka's own request would create
    it."""
    request = MetadataRequest([name], allow_auto_topic_creation=False)
    answer = await admin._client.send(admin._client.get_random_node(), request)
    (topic_metadata,) = answer.to_object()["topics"]
    error = for_code(topic_metadata["error_code"])
    if error is UnknownTopicOrPartitionError:
        return None
    if error is not NoError:
        raise error(f"the broker says of the topic {name!r}: {error.message}")
    return list(topic_metadata["partitions"]) or None


async def _read_settings(admin: AIOKafkaAdminClient, name: str) -> dict[str, str] | None:
    """Return a topic's settings; None if the brokers do not know the request."""
    try:
        (answer,) = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, name)])
    except IncompatibleBrokerVersion:
        return None
    # error code, message, type, name, entries; of an entry: name, value
    code, message, _, _, entries = answer.resources[0]
    if (error := for_code(code)) is not NoError:
        raise error(f"the broker does not describe the topic {name!r}: {message or error.message}")
    return {entry[0]: entry[1] or "" for entry in entries}


def _build_settings(partitions: list[Any], settings: Mapping[str, str] | None) -> TopicSettings:
    return TopicSettings(
        partitions=len(partitions),
        replicas=min(len(partition["replicas"]) for partition in partitions),
        leaderless=sum(partition["leader"] < 0 for partition in partitions),
        lagging=sum(len(partition["isr"]) < len(partition["replicas"]) for partition in partitions),
        settings=settings,
    )


async def ends(settings: KafkaSettings) -> dict[int, tuple[int, int]]:
    """Return the first and the last offset of each partition. Raises KafkaError, OSError."""
    consumer = AIOKafkaConsumer(
        settings.kafka_topic,
        **client_arguments(settings),
        request_timeout_ms=_TIMEOUT_MILLISECONDS,
        isolation_level="read_committed",
        enable_auto_commit=False,
        auto_offset_reset="latest",
    )
    try:
        await _start(consumer, settings)
        numbers = sorted(consumer.partitions_for_topic(settings.kafka_topic) or ())
        partitions = [TopicPartition(settings.kafka_topic, number) for number in numbers]
        first = await consumer.beginning_offsets(partitions)
        last = await consumer.end_offsets(partitions)
    finally:
        await consumer.stop()
    return {partition.partition: (first[partition], last[partition]) for partition in partitions}


async def has_unread(
    settings: KafkaSettings, read: Mapping[int, int], ends: Mapping[int, int]
) -> bool:
    """Return whether there is an unread record before one of `ends`. `read`: the next offset
    to read, by partition. Raises KafkaError, OSError.

    The first unread record of each partition is requested: markers are nothing to read.
    """
    consumer = AIOKafkaConsumer(
        **client_arguments(settings),
        request_timeout_ms=_TIMEOUT_MILLISECONDS,
        isolation_level="read_committed",
        enable_auto_commit=False,
        auto_offset_reset="earliest",
    )
    try:
        await _start(consumer, settings)
        # not the partitions that the client knows: it knows none of a topic without a subscription
        partitions = [TopicPartition(settings.kafka_topic, number) for number in sorted(ends)]
        consumer.assign(partitions)
        first = await consumer.beginning_offsets(partitions)
        last = await consumer.end_offsets(partitions)
        for partition in partitions:
            start = max(first[partition], read.get(partition.partition, first[partition]))
            end = min(last[partition], ends[partition.partition])
            if start < end:
                consumer.seek(partition, start)
                if await _is_before(consumer, partition, end):
                    return True
    finally:
        await consumer.stop()
    return False


async def _is_before(consumer: Any, partition: TopicPartition, end: int) -> bool:
    """Return whether the next record of a partition is before an offset: there may be only markers.

    Raises KafkaTimeoutError if no record arrives.
    """
    for _ in range(_READS):
        answer = await consumer.getmany(partition, timeout_ms=_READ_MILLISECONDS, max_records=1)
        for record in answer.get(partition, ()):
            return int(record.offset) < end
        if await consumer.position(partition) >= end:
            return False
    raise KafkaTimeoutError(f"partition {partition.partition} has unread events, and gives none")


async def _start(client: Any, settings: KafkaSettings) -> None:
    try:
        await client.start()
    except KafkaConnectionError as error:
        why = await find_connection_error(client_arguments(settings))
        raise KafkaConnectionError(why or str(error)) from error
