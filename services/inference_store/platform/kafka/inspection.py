"""What an operator would look up in Kafka: its version, the topic's settings, where logs end."""

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

from .connection import client_arguments, why_away

AWAY = (KafkaError, OSError, ssl.SSLError, ValueError)
_TIMEOUT_MILLISECONDS = 8000
_FETCH = 1
_READS = 8
_READ_MILLISECONDS = 1000


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """A topic as the brokers keep it.

    `settings`: the topic's own and the brokers' defaults; None: the brokers do not tell them.
    """

    partitions: int
    replicas: int
    # partitions without a leader, and those with fewer replicas in sync than they have
    leaderless: int
    lagging: int
    settings: Mapping[str, str] | None


async def version(settings: KafkaSettings) -> tuple[int, str]:
    """The brokers' major version, and how it is to be said. Raises KafkaError, OSError.

    Brokers do not tell their version, only which requests they take.
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
    """The topic of the settings; None where there is none. Raises KafkaError, OSError."""
    admin = AIOKafkaAdminClient(
        **client_arguments(settings), request_timeout_ms=_TIMEOUT_MILLISECONDS
    )
    try:
        await _started(admin, settings)
        partitions = await _partitions(admin, settings.kafka_topic)
        if partitions is None:
            return None
        return _settings_of(partitions, await _told_settings(admin, settings.kafka_topic))
    finally:
        await admin.close()


async def _partitions(admin: AIOKafkaAdminClient, name: str) -> list[Any] | None:
    """Those of a topic; None where there is none. aiokafka's own question would make it."""
    request = MetadataRequest([name], allow_auto_topic_creation=False)
    answer = await admin._client.send(admin._client.get_random_node(), request)
    (found,) = answer.to_object()["topics"]
    error = for_code(found["error_code"])
    if error is UnknownTopicOrPartitionError:
        return None
    if error is not NoError:
        raise error(f"the broker says of the topic {name!r}: {error.message}")
    return list(found["partitions"]) or None


async def _told_settings(admin: AIOKafkaAdminClient, name: str) -> dict[str, str] | None:
    """What brokers tell of a topic's settings; None where they do not know the question."""
    try:
        (answer,) = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, name)])
    except IncompatibleBrokerVersion:
        return None
    # error code, message, type, name, entries; of an entry: name, value
    code, message, _, _, entries = answer.resources[0]
    if (error := for_code(code)) is not NoError:
        raise error(f"the broker does not describe the topic {name!r}: {message or error.message}")
    return {entry[0]: entry[1] or "" for entry in entries}


def _settings_of(partitions: list[Any], settings: Mapping[str, str] | None) -> TopicSettings:
    return TopicSettings(
        partitions=len(partitions),
        replicas=min(len(one["replicas"]) for one in partitions),
        leaderless=sum(one["leader"] < 0 for one in partitions),
        lagging=sum(len(one["isr"]) < len(one["replicas"]) for one in partitions),
        settings=settings,
    )


async def ends(settings: KafkaSettings) -> dict[int, tuple[int, int]]:
    """Where the log of each partition begins and ends. Raises KafkaError, OSError."""
    consumer = AIOKafkaConsumer(
        settings.kafka_topic,
        **client_arguments(settings),
        request_timeout_ms=_TIMEOUT_MILLISECONDS,
        isolation_level="read_committed",
        enable_auto_commit=False,
        auto_offset_reset="latest",
    )
    try:
        await _started(consumer, settings)
        numbers = sorted(consumer.partitions_for_topic(settings.kafka_topic) or ())
        places = [TopicPartition(settings.kafka_topic, number) for number in numbers]
        first = await consumer.beginning_offsets(places)
        last = await consumer.end_offsets(places)
    finally:
        await consumer.stop()
    return {place.partition: (first[place], last[place]) for place in places}


async def has_unread(
    settings: KafkaSettings, read: Mapping[int, int], ends: Mapping[int, int]
) -> bool:
    """Whether a record lies before one of `ends` that is not read yet. `read`: by partition, the
    offset that is read next. Raises KafkaError, OSError.

    Of each partition the first unread record is asked for: markers alone are nothing to read.
    """
    consumer = AIOKafkaConsumer(
        **client_arguments(settings),
        request_timeout_ms=_TIMEOUT_MILLISECONDS,
        isolation_level="read_committed",
        enable_auto_commit=False,
        auto_offset_reset="earliest",
    )
    try:
        await _started(consumer, settings)
        # not those that the client knows: of a topic that is not subscribed to it knows none
        places = [TopicPartition(settings.kafka_topic, number) for number in sorted(ends)]
        consumer.assign(places)
        first = await consumer.beginning_offsets(places)
        last = await consumer.end_offsets(places)
        for place in places:
            start = max(first[place], read.get(place.partition, first[place]))
            end = min(last[place], ends[place.partition])
            if start < end:
                consumer.seek(place, start)
                if await _is_before(consumer, place, end):
                    return True
    finally:
        await consumer.stop()
    return False


async def _is_before(consumer: Any, place: TopicPartition, end: int) -> bool:
    """Whether the next record of a partition lies before an offset: there may be markers alone.

    Raises KafkaTimeoutError where it does not come.
    """
    for _ in range(_READS):
        answer = await consumer.getmany(place, timeout_ms=_READ_MILLISECONDS, max_records=1)
        for record in answer.get(place, ()):
            return int(record.offset) < end
        if await consumer.position(place) >= end:
            return False
    raise KafkaTimeoutError(f"partition {place.partition} has unread events, and gives none")


async def _started(client: Any, settings: KafkaSettings) -> None:
    try:
        await client.start()
    except KafkaConnectionError as error:
        why = await why_away(client_arguments(settings))
        raise KafkaConnectionError(why or str(error)) from error
