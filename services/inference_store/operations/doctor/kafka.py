"""Checks Kafka, the topic, and whether ingesters keep up with it."""

import ssl
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta

from aiokafka.errors import KafkaError

from inference_store.index import accounting
from inference_store.inference.plural import counted
from inference_store.platform import kafka
from inference_store.platform.kafka import TopicSettings

from .findings import DoctorSettings, Finding, Subject, failed, ok, warning

_UNAVAILABLE = (KafkaError, OSError, ssl.SSLError, ValueError)
# Shorter than this, an outage over a weekend loses events.
_SHORT_SECONDS = 3 * 24 * 3600
_STUCK_AFTER = timedelta(minutes=5)
_LARGE_LAG = 100_000
# Every Kafka since 0.11 reports them.
_NOT_REPORTED = (
    "its settings are not reported, as this broker has no DescribeConfigs: it is one for tests, and"
    " keeps nothing when it ends"
)


async def check_kafka(subject: Subject) -> list[Finding]:
    """Check that Kafka answers, and is of a supported version."""
    try:
        major, version = await kafka.version(subject.settings)
    except _UNAVAILABLE as error:
        return [
            failed(
                f"Kafka does not answer: {error or type(error).__name__}"[:300],
                "Is INFERENCE_STORE_KAFKA_BOOTSTRAP_SERVERS its address as seen from here, and are"
                " INFERENCE_STORE_KAFKA_SECURITY_PROTOCOL, the login and the certificates right?",
            )
        ]
    if major < 3:
        return [failed(f"Kafka {version}", "Upgrade it to 3 or newer.")]
    return [ok(f"Kafka {version}")]


async def check_topic(subject: Subject) -> list[Finding]:
    """Check that the topic keeps its records long enough, and not too long."""
    name = subject.settings.kafka_topic
    try:
        topic = await kafka.topic(subject.settings)
    except _UNAVAILABLE as error:
        remedy = f"May we Describe and DescribeConfigs the topic {name!r}? Are its brokers well?"
        return [failed(f"the topic {name!r} cannot be described: {error}"[:300], remedy)]
    if topic is None:
        remedy = (
            f"kafka-topics.sh --create --topic {name} --partitions 6 --replication-factor 3"
            " --config min.insync.replicas=2; or fix INFERENCE_STORE_KAFKA_TOPIC."
        )
        return [failed(f"there is no topic {name!r}", remedy)]
    seen = f"{counted(topic.partitions, 'partition')}, {counted(topic.replicas, 'replica')}"
    if topic.settings is None:
        return [*_check_leaders(topic)] or [ok(f"{seen}; {_NOT_REPORTED}")]
    checks = (
        _check_leaders(topic),
        _check_replicas(topic),
        _check_retention(topic, subject.settings),
    )
    return [finding for findings in checks for finding in findings] or [ok(seen)]


def _check_leaders(topic: TopicSettings) -> Iterator[Finding]:
    if topic.leaderless:
        leaderless = counted(topic.leaderless, "partition has", "partitions have")
        yield failed(f"{leaderless} no leader", "Bring the brokers back.")


def _check_replicas(topic: TopicSettings) -> Iterator[Finding]:
    least = int((topic.settings or {}).get("min.insync.replicas") or 1)
    both = f"min.insync.replicas={least} with {counted(topic.replicas, 'replica')}"
    if least > topic.replicas:
        yield failed(f"{both}: nothing can be published", "Lower it, or add replicas.")
    elif topic.replicas == 1:
        yield warning("one replica: with its broker events are lost", "Use 3 replicas.")
    elif least == 1:
        seen = f"{both}: an acknowledged event may be on one broker alone"
        yield warning(seen, "Set min.insync.replicas=2, and let producers use acks=all.")
    elif least == topic.replicas:
        yield warning(f"{both}: one broker away stops producers", "Use one replica more.")
    if topic.lagging:
        lagging = counted(topic.lagging, "partition lacks", "partitions lack")
        yield warning(f"{lagging} a replica in sync", "Look at the brokers.")


def _check_retention(topic: TopicSettings, settings: DoctorSettings) -> Iterator[Finding]:
    topic_settings = topic.settings or {}
    if "compact" in topic_settings.get("cleanup.policy", "delete"):
        seen = "the topic is compacted: of two events with one key the older is dropped"
        yield failed(seen, "Set cleanup.policy=delete.")
    retention_ms = int(topic_settings.get("retention.ms") or -1)
    if 0 <= retention_ms < _SHORT_SECONDS * 1000:
        yield warning(
            f"events are kept for {retention_ms / 3600_000:.1f} hours: a longer outage loses them",
            "Raise the topic's retention.ms to a week.",
        )
    if retention_ms < 0 or retention_ms / 1000 > settings.tombstone_seconds:
        long = "for ever" if retention_ms < 0 else f"for {retention_ms / 1000:.0f} s"
        yield warning(
            f"the topic keeps events {long}, and an erased inference is remembered for"
            f" {settings.tombstone_seconds:g} s: to read the topic again could bring it back",
            "Raise INFERENCE_STORE_TOMBSTONE_SECONDS above the topic's retention.ms.",
        )


async def check_lag(subject: Subject) -> list[Finding]:
    """Check that the records of the topic are in the offset accounting, or will be soon."""
    try:
        ends = await kafka.ends(subject.settings)
    except _UNAVAILABLE as error:
        return [failed(f"the topic's ends are not known: {error}"[:300], "May we read it?")]
    async with subject.engine.connect() as connection:
        accounts = await accounting.list_accounts(connection)
    here = subject.settings
    newest = {
        account.partition_id.partition: account  # ordered by epoch: the last one stays
        for account in accounts
        if (account.partition_id.cluster, account.partition_id.topic)
        == (here.kafka_cluster, here.kafka_topic)
    }
    return [_judge_lag(ends, newest)]


def _judge_lag(
    ends: Mapping[int, tuple[int, int]], newest: Mapping[int, accounting.Account]
) -> Finding:
    behind = {
        partition: max(0, last - (newest[partition].next if partition in newest else first))
        for partition, (first, last) in ends.items()
    }
    count = sum(behind.values())
    waiting = counted(count, "event waits", "events wait")
    old = datetime.now(UTC) - _STUCK_AFTER
    stuck = [
        partition
        for partition, count in behind.items()
        if count and (partition not in newest or newest[partition].updated_at < old)
    ]
    if stuck:
        stuck_partitions = counted(len(stuck), "partition has", "partitions have")
        return warning(
            f"{waiting}, and {stuck_partitions} not moved for 5 minutes",
            "Is `inference-store ingester` running? Its /health/ready says what it waits for.",
        )
    if count > _LARGE_LAG:
        return warning(waiting, "Start more ingesters, up to one a partition.")
    return ok(waiting)
