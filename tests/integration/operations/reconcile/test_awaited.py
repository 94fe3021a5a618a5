"""An object whose event is still to come is no orphan, however late the event is."""

from datetime import UTC, datetime, timedelta
from typing import Any

from aiokafka import AIOKafkaProducer
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.index import accounting
from inference_store.index.accounting import PartitionId, ReceivedReport
from inference_store.index.tables import kafka_partition
from inference_store.inference.events import StorageKey
from inference_store.inference.producer_reports import ProducerReport
from inference_store.operations.reconcile import age_bound
from inference_store.platform.settings import KafkaSettings
from tests.integration.retention.stored import Storing

from .conftest import Reconcile

NOW = datetime.now(UTC)


def _put(storing: Storing, key: str) -> str:
    place = StorageKey(storing.bucket, key)
    storing.blobs.put(place, b"left over", content_type="text/plain")
    return str(place)


async def _publish(kafka: KafkaSettings) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=kafka.kafka_bootstrap_servers)
    await producer.start()
    try:
        await producer.send_and_wait(kafka.kafka_topic, b"{}", partition=0)
    finally:
        await producer.stop()


async def _books(engine: AsyncEngine, kafka: KafkaSettings, read: int, topic: str = "") -> None:
    place = PartitionId(kafka.kafka_cluster, topic or kafka.kafka_topic, 0, 0)
    async with engine.begin() as connection:
        await accounting.open_partition(connection, place, first=0, began="first")
        here = kafka_partition.c.topic == place.topic
        await connection.execute(kafka_partition.update().where(here).values(next=read))


async def test_an_event_that_comes_long_after_its_objects_is_waited_for(
    storing: Storing, reconcile: Reconcile, engine: AsyncEngine, kafka: KafkaSettings
) -> None:
    """As after an outage of Kafka that was longer than the grace: the record is new."""
    await _books(engine, kafka, 0)
    late = _put(storing, "p/model/late")
    await _publish(kafka)
    one, found = await reconcile()
    assert (found, one.count("unjudged"), one.orphans_before) == ([], 1, None)
    await _books(engine, kafka, 1)
    _, found = await reconcile()
    assert [each.storage_key for each in found] == [late]


async def test_where_something_is_always_unread_a_former_note_is_the_bound(
    storing: Storing, reconcile: Reconcile, engine: AsyncEngine, kafka: KafkaSettings
) -> None:
    await _books(engine, kafka, 0)
    await reconcile()
    await _publish(kafka)
    _put(storing, "p/model/late")
    first, found = await reconcile()
    assert (found, first.count("young")) == ([], 1)
    assert first.orphans_before is not None
    assert first.noted_at is not None
    assert first.orphans_before < first.noted_at


async def test_a_topic_made_anew_or_another_one_leaves_nothing_judged(
    storing: Storing, reconcile: Reconcile, engine: AsyncEngine, kafka: KafkaSettings
) -> None:
    _put(storing, "p/model/x")
    await _books(engine, kafka, 7)
    one, found = await reconcile()
    assert (found, one.count("unjudged"), "made anew" in (one.because or "")) == ([], 1, True)
    await _books(engine, kafka, 0)
    await _books(engine, kafka, 3, topic="another")
    one, found = await reconcile()
    assert (found, one.count("unjudged"), "another" in (one.because or "")) == ([], 1, True)


def _said(producer: str, reporter: str, booted: float, told: float, **more: Any) -> ProducerReport:
    """Hours ago; `final` where it is said."""
    final = bool(more.pop("final", 0))
    booted_at, reported_at = NOW - timedelta(hours=booted), NOW - timedelta(hours=told)
    told_by: dict[str, Any] = {"producer": producer, "reporter": reporter, "number": 1}
    return ProducerReport(
        **told_by, booted_at=booted_at, reported_at=reported_at, final=final, **more
    )


async def test_spools_are_waited_for_whoever_found_them(
    engine: AsyncEngine, kafka: KafkaSettings
) -> None:
    reports = [
        _said("running", "running", 9, 0),
        _said("ended well", "ended well", 90, 80, final=1),
        _said("killed", "killed", 50, 40, queued=2, spooled=2),
        _said("killed", "finder", 1, 0.5, queued=1, spooled=1),
        _said("emptied", "emptied", 70, 60, spooled=2, queued=2, final=1),
        _said("emptied", "finder", 1, 0.5, final=1),
        _said("lost", "lost", 35, 30),
    ]
    place = PartitionId(kafka.kafka_cluster, "reports", 0, 0)
    async with engine.begin() as connection:
        await accounting.store_reports(
            connection, [ReceivedReport(one, place, 0) for one in reports]
        )
    async with engine.connect() as connection:
        waited = await age_bound.list_waiting(connection, now=NOW)
        hours = sorted(round((NOW - at) / timedelta(hours=1)) for at, _ in waited)
        assert hours == [0, 30, 50]
        later = await age_bound.list_waiting(connection, now=NOW + timedelta(days=8))
    assert [round((NOW - at) / timedelta(hours=1)) for at, _ in later] == [50]
    stranger = _said("unheard", "finder", 1, 0.5, queued=1, spooled=1)
    async with engine.begin() as connection:
        await accounting.store_reports(connection, [ReceivedReport(stranger, place, 0)])
        (found,) = [
            at for at, _ in await age_bound.list_waiting(connection, now=NOW) if at.year == 1
        ]
    assert found.tzinfo is UTC


async def test_the_grace_before_the_first_of_times_is_no_fault(engine: AsyncEngine) -> None:
    place = PartitionId("default", "reports", 0, 0)
    stranger = _said("unheard", "finder", 1, 0.5, queued=1, spooled=1)
    async with engine.begin() as connection:
        await accounting.store_reports(connection, [ReceivedReport(stranger, place, 0)])
        note = age_bound.Note(NOW, "default", "t", {})
        found = await age_bound.find_bound(connection, note, grace_seconds=86400)
    assert found.before is None
