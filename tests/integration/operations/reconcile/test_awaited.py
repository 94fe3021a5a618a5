"""An object whose event is still to come is not an orphan, however late the event is."""

from datetime import UTC, datetime, timedelta
from typing import Any

from aiokafka import AIOKafkaProducer
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.index import accounting
from inference_store.index.accounting import PartitionId, ReceivedReport
from inference_store.index.tables import kafka_partition
from inference_store.inference.producer_reports import ProducerReport
from inference_store.operations.reconcile import stored_reports
from inference_store.platform.settings import KafkaSettings
from tests.integration.retention.stored import Storing
from tests.transactions import transact

from .conftest import Reconcile, put

NOW = datetime.now(UTC)


async def _publish(kafka: KafkaSettings) -> None:
    async with AIOKafkaProducer(bootstrap_servers=kafka.kafka_bootstrap_servers) as producer:
        await producer.send_and_wait(kafka.kafka_topic, b"{}", partition=0)


async def _open_books(
    engine: AsyncEngine, kafka: KafkaSettings, read: int, topic: str = ""
) -> None:
    partition_id = PartitionId(kafka.kafka_cluster, topic or kafka.kafka_topic, 0, 0)
    async with engine.begin() as connection:
        await accounting.open_partition(connection, partition_id, first=0, began="first")
        here = kafka_partition.c.topic == partition_id.topic
        await connection.execute(kafka_partition.update().where(here).values(next=read))


async def test_waits_for_an_event_long_after_its_objects(
    storing: Storing, reconcile: Reconcile, engine: AsyncEngine, kafka: KafkaSettings
) -> None:
    """This happens after an outage of Kafka longer than the grace period: the record is new."""
    await _open_books(engine, kafka, 0)
    [late] = put(storing, "p/model/late")
    await _publish(kafka)
    reconciliation, findings = await reconcile()
    assert (findings, reconciliation.count("unjudged")) == ([], 1)
    assert reconciliation.orphans_before is None
    await _open_books(engine, kafka, 1)
    _, findings = await reconcile()
    assert [finding.storage_key for finding in findings] == [late]


async def test_where_something_is_always_unread_a_former_note_is_the_bound(
    storing: Storing, reconcile: Reconcile, engine: AsyncEngine, kafka: KafkaSettings
) -> None:
    await _open_books(engine, kafka, 0)
    await reconcile()
    await _publish(kafka)
    put(storing, "p/model/late")
    first, findings = await reconcile()
    assert (findings, first.count("young")) == ([], 1)
    assert first.orphans_before is not None
    assert first.noted_at is not None
    assert first.orphans_before < first.noted_at


async def test_judges_nothing_if_the_topic_changed(
    storing: Storing, reconcile: Reconcile, engine: AsyncEngine, kafka: KafkaSettings
) -> None:
    put(storing, "p/model/x")
    for why, read, topic in (("created again", 7, ""), ("another", 3, "another")):
        await _open_books(engine, kafka, 0)
        await _open_books(engine, kafka, read, topic=topic)
        reconciliation, findings = await reconcile()
        assert (findings, reconciliation.count("unjudged")) == ([], 1), why
        assert why in (reconciliation.because or "")


def _make_report(
    producer: str, reporter: str, booted: float, reported: float, **more: Any
) -> ProducerReport:
    """Make a report of a producer; `booted` and `reported` are hours ago."""
    final = bool(more.pop("final", 0))
    booted_at, reported_at = NOW - timedelta(hours=booted), NOW - timedelta(hours=reported)
    identity: dict[str, Any] = {"producer": producer, "reporter": reporter, "number": 1}
    return ProducerReport(
        **identity, booted_at=booted_at, reported_at=reported_at, final=final, **more
    )


async def test_waits_for_spools_of_any_reporter(engine: AsyncEngine, kafka: KafkaSettings) -> None:
    reports = [
        _make_report("running", "running", 9, 0),
        _make_report("ended well", "ended well", 90, 80, final=1),
        _make_report("killed", "killed", 50, 40, queued=2, spooled=2),
        _make_report("killed", "finder", 1, 0.5, queued=1, spooled=1),
        _make_report("emptied", "emptied", 70, 60, spooled=2, queued=2, final=1),
        _make_report("emptied", "finder", 1, 0.5, final=1),
        _make_report("lost", "lost", 35, 30),
    ]
    partition_id = PartitionId(kafka.kafka_cluster, "reports", 0, 0)
    received = [ReceivedReport(report, partition_id, 0) for report in reports]
    await transact(engine, accounting.store_reports, received)
    waited = await transact(engine, stored_reports.list_waiting, now=NOW)
    hours = sorted(round((NOW - at) / timedelta(hours=1)) for at, _ in waited)
    assert hours == [0, 30, 50]
    later = await transact(engine, stored_reports.list_waiting, now=NOW + timedelta(days=8))
    assert [round((NOW - at) / timedelta(hours=1)) for at, _ in later] == [50]
    stranger = _make_report("unheard", "finder", 1, 0.5, queued=1, spooled=1)
    async with engine.begin() as connection:
        await accounting.store_reports(connection, [ReceivedReport(stranger, partition_id, 0)])
        (waiting_since,) = [
            at for at, _ in await stored_reports.list_waiting(connection, now=NOW) if at.year == 1
        ]
    assert waiting_since.tzinfo is UTC


async def test_grace_before_the_earliest_time_is_no_error(engine: AsyncEngine) -> None:
    partition_id = PartitionId("default", "reports", 0, 0)
    stranger = _make_report("unheard", "finder", 1, 0.5, queued=1, spooled=1)
    async with engine.begin() as connection:
        await accounting.store_reports(connection, [ReceivedReport(stranger, partition_id, 0)])
        note = stored_reports.Note(NOW, "default", "t", {})
        bound = await stored_reports.find_bound(connection, note, grace_seconds=86400)
    assert bound.before is None
