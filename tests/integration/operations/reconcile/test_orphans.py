"""Orphans are erased unless a hold may keep them or their event is still to come."""

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from aiokafka import AIOKafkaProducer
from minio.commonconfig import COMPLIANCE
from minio.retention import Retention
from sqlalchemy import func, insert, select
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.erasure import certificates
from inference_store.erasure.ledger import Ledger
from inference_store.erasure.log import read_document
from inference_store.erasure.progress import Erasure, list_blocked, list_unfinished
from inference_store.erasure.proofs import Verification
from inference_store.erasure.requests import request_cancellation
from inference_store.index import accounting, unsettled
from inference_store.index.accounting import PartitionId, ReceivedReport, open_partition
from inference_store.index.tables import blob_reference, erasing_object, kafka_partition
from inference_store.index.unsettled import Record, Rejection
from inference_store.inference.errors import LedgerDiverged
from inference_store.inference.events import StorageKey
from inference_store.inference.layout import key_of
from inference_store.inference.producer_reports import ProducerReport
from inference_store.objects import Blobs
from inference_store.operations.reconcile import orphans, stored_reports
from inference_store.platform.failpoints import FAILPOINTS
from inference_store.platform.settings import KafkaSettings, RetentionSettings
from inference_store.retention.leader import Leader
from inference_store.retention.orphan_eraser import erase_orphans
from inference_store.retention.run import begin, run_turn
from tests.integration.backups import Backup, Restore
from tests.integration.retention.stored import (
    NOW,
    NoPace,
    Storing,
    ago,
    environment_of,
    make_leader,
    place_hold,
)
from tests.kill_chain import KillChain, chain_kills
from tests.polling import until
from tests.servers.fixtures import unique
from tests.servers.minio import S3
from tests.service_process import Service
from tests.transactions import scalar, transact

from .conftest import KEY, WHO, Command, Reconcile, put

ORPHAN_FAILPOINTS = [name for name in FAILPOINTS if name.startswith("orphans.")]
Erase = Callable[[UUID], Awaitable[Erasure]]


def _list_objects(storing: Storing) -> set[str]:
    return {key for key in storing.objects() if not key.startswith(("certificates/", "ledger/"))}


@pytest.fixture
def erase(storing: Storing, ledger: Ledger, leader: Leader) -> Erase:
    async def erase_to_end(report: UUID) -> Erasure:
        erasure = await orphans.request_erasure(ledger, report, WHO)
        assert await erase_orphans(leader, erasure, seconds=300)
        return await storing.reload(erasure)

    return erase_to_end


async def _states(engine: AsyncEngine, report: UUID) -> dict[str, str]:
    findings = await transact(engine, stored_reports.list_findings, report, limit=1000)
    return {finding.storage_key.split("/", 3)[3]: finding.state for finding in findings}


async def test_erases_orphans_and_keeps_stored_objects(
    storing: Storing, reconcile: Reconcile, engine: AsyncEngine, erase: Erase
) -> None:
    _, stored = await storing.begin(2, ago(days=1))
    put(storing, "p/a", "p/b/c", "p/model/2020/01/01/00/x", "sidecars/model/y", "elsewhere/z")
    report, findings = await reconcile()
    assert len(findings) == 4
    estimate = await transact(engine, orphans.estimate_orphans, report.id)
    assert (estimate.objects, estimate.bytes, estimate.held, estimate.kept) == (4, 36, 0, 0)
    erasure = await erase(report.id)
    assert (erasure.state, erasure.inferences) == ("certified", 0)
    assert (erasure.objects, erasure.bytes) == (4, 36)
    stored_keys = {key.key for inference in stored for key in inference.objects}
    assert _list_objects(storing) == stored_keys | {"elsewhere/z"}
    assert set((await _states(engine, report.id)).values()) == {"erased"}
    (row,) = await transact(engine, certificates.list_certificates, erasure_id=erasure.id)
    document = read_document(row.signed).document
    assert (document["erased"]["objects"], document["erasure"]["cause"]) == (4, "orphans")
    assert document["erasure"]["asked"] == {"report": str(report.id)}
    verification = Verification(storing.ledger, trusted={KEY.id})
    assert [str(wrong) async for wrong in verification.find_failures()] == []
    report, findings = await reconcile()
    assert findings == []


async def test_keeps_objects_that_are_no_longer_orphans(
    storing: Storing, reconcile: Reconcile, erase: Erase, kafka: KafkaSettings
) -> None:
    model = await storing.model()
    put(storing, "p/gone", "p/stored", "p/dead", "p/written again")
    report, _ = await reconcile()
    at = PartitionId(kafka.kafka_cluster, kafka.kafka_topic, 0, 0)
    letter = Record(at, 1, NOW, None, b'{"data_storage_key": "p/dead"}', ())
    values = {"model": model, "uid": storing.uid(NOW), "storage_key": None}
    async with storing.engine.begin() as connection:
        key = f"s3://{storing.bucket}/p/stored"
        await connection.execute(insert(blob_reference).values(values | {"storage_key": key}))
        await open_partition(connection, at, first=0)
        rejection = Rejection("invalid_time", "x", "model", "1")
        await unsettled.add_dead(connection, [(letter, rejection)])
    put(storing, "p/written again")
    erasure = await erase(report.id)
    assert (erasure.state, erasure.objects) == ("certified", 1)
    assert _list_objects(storing) == {"p/stored", "p/dead", "p/written again"}
    kept_states = {"p/stored": "kept", "p/dead": "kept", "p/written again": "kept"}
    assert await _states(storing.engine, report.id) == kept_states | {"p/gone": "erased"}


async def test_keeps_held_orphans_until_the_hold_is_released(
    storing: Storing, reconcile: Reconcile, engine: AsyncEngine, erase: Erase
) -> None:
    held, free = await storing.model("held/model"), await storing.model("free")
    of_held = key_of("p", "held/model", ago(days=3), uuid4(), "data")
    of_free = key_of("p", "free", ago(days=3), uuid4(), "data")
    put(storing, of_held, of_free, "sidecars/held%2Fmodel/x", "sidecars/free/x", "p/whose")
    hold = await storing.hold(held, "ok")
    report, _ = await reconcile()
    estimate = await transact(engine, orphans.estimate_orphans, report.id)
    assert (estimate.objects, estimate.held) == (2, 3)
    erasure = await erase(report.id)
    assert (erasure.state, erasure.objects, erasure.held) == ("certified", 2, 3)
    assert _list_objects(storing) == {of_held, "sidecars/held%2Fmodel/x", "p/whose"}
    assert {
        s for k, s in (await _states(engine, report.id)).items() if k in _list_objects(storing)
    } == {"held"}
    await storing.release(hold)
    everything = await storing.hold(None, "ok")
    report, _ = await reconcile()
    assert (await erase(report.id)).objects == 0
    await storing.release(everything)
    report, _ = await reconcile()
    assert (await erase(report.id)).objects == 3
    assert _list_objects(storing) == set()
    assert free != held


async def test_hold_before_the_claim_wins(
    storing: Storing, reconcile: Reconcile, ledger: Ledger, settings: RetentionSettings
) -> None:
    await storing.model()
    put(storing, "p/1", "p/2", "p/3")
    report, _ = await reconcile()
    erasure = await orphans.request_erasure(ledger, report.id, WHO)
    check = _HoldingPace(storing.engine)
    leader = make_leader(storing.engine, storing.blobs, settings, check=check)
    assert await erase_orphans(leader, erasure, seconds=300)
    assert _list_objects(storing) == {"p/1", "p/2", "p/3"}
    ended = await storing.reload(erasure)
    assert (ended.state, ended.marked, ended.held) == ("deleted", 3, 3)


class _HoldingPace(NoPace):
    """A pace that places a hold before the second step: keys are in the ledger, none is claimed."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._steps = 0

    async def confirm_step(self) -> None:
        self._steps += 1
        if self._steps == 2:
            await place_hold(self._engine, None, "ok")


async def test_cancelled_erasure_deletes_nothing(
    storing: Storing, reconcile: Reconcile, ledger: Ledger, leader: Leader
) -> None:
    put(storing, "p/x", "p/y")
    report, _ = await reconcile()
    erasure = await orphans.request_erasure(ledger, report.id, WHO)
    await storing.transact(request_cancellation, erasure.id)
    assert await erase_orphans(leader, erasure, seconds=300)
    assert (await storing.reload(erasure)).state == "cancelled"
    assert _list_objects(storing) == {"p/x", "p/y"}
    assert await orphans.request_erasure(ledger, report.id, WHO) != erasure


@pytest.mark.kills
@chain_kills(ORPHAN_FAILPOINTS)
async def test_killed_erasure_ends_with_one_certificate(
    kills: KillChain,
    storing: Storing,
    reconcile: Reconcile,
    ledger: Ledger,
    settings: RetentionSettings,
    tmp_path: Path,
) -> None:
    """An erasure for each kill, each of the orphans of its own report."""
    environment = environment_of(settings) | {
        "INFERENCE_STORE_CERTIFICATE_KEY": KEY.pem,
        "INFERENCE_STORE_RECONCILE_GRACE_SECONDS": "0",
    }
    erasures = []
    for turn, kill in enumerate(kills):
        put(storing, *(f"p/{turn}/{number}" for number in range(5)))
        report, _ = await reconcile(reconcile_prefixes=f"p/{turn}")
        erasures.append(await orphans.request_erasure(ledger, report.id, WHO))
        failing = Service("retention", environment | {"INFERENCE_STORE_FAILPOINT": kill}, tmp_path)
        await kills.wait_until_killed(failing)
    key_settings = settings.model_dump() | {"certificate_key": KEY.pem}
    again = RetentionSettings.model_validate(key_settings)
    leader = Leader(again, storing.engine, storing.blobs, NoPace())
    await begin(leader)

    async def read_states() -> set[str]:
        await run_turn(leader)
        return {(await storing.reload(erasure)).state for erasure in erasures}

    await until(read_states, lambda states: states == {"certified"}, seconds=600)
    assert _list_objects(storing) == set()
    for erasure in erasures:
        assert (await storing.reload(erasure)).objects == 5
        (row,) = await storing.transact(certificates.list_certificates, erasure_id=erasure.id)
        assert read_document(row.signed).document["erased"]["objects"] == 5
    assert await storing.scalar("SELECT count(*) FROM erasing_object") == 0


async def test_command_estimates_and_then_erases_orphans(
    storing: Storing,
    command: Command,
    settings: RetentionSettings,
    kafka: KafkaSettings,
    tmp_path: Path,
) -> None:
    for key in ("p/one", "p/two"):
        storing.blobs.put(StorageKey(storing.bucket, key), b"x", content_type="text/plain")
    changed = {"RECONCILE_PREFIXES": "p", "RECONCILE_GRACE_SECONDS": "0"}
    changed |= {"KAFKA_TOPIC": kafka.kafka_topic}
    code, report = await command("--repair", "erase", **changed)
    assert (code, report["counts"]["orphans"]) == (1, 2)
    assert (report["would_erase"]["objects"], report["would_erase"]["bytes"]) == (2, 2)
    assert {"p/one", "p/two"} <= storing.objects()
    environment = environment_of(settings) | {"INFERENCE_STORE_RECONCILE_GRACE_SECONDS": "0"}
    with Service("retention", environment, tmp_path):
        for _ in range(2):  # the second call only follows the erasure
            code, erased = await command("--repair", "erase", "--report", report["id"])
            assert (code, erased["cause"], erased["objects"]) == (0, "orphans", 2)
    assert not {"p/one", "p/two"} & storing.objects()


class TestLocked:
    """The bucket locks an orphan: an erasure names it, and erases the others."""

    @pytest.fixture
    def bucket(self, minio_server: S3) -> str:
        return minio_server.create_bucket(unique(), object_lock=True)

    @pytest.mark.real_minio
    async def test_names_a_locked_orphan(
        self,
        storing: Storing,
        reconcile: Reconcile,
        ledger: Ledger,
        leader: Leader,
        minio_server: S3,
    ) -> None:
        put(storing, "p/locked", "p/free")
        locked, free = (StorageKey(storing.bucket, f"p/{name}") for name in ("locked", "free"))
        end = datetime.now(UTC).replace(microsecond=0) + timedelta(days=1)
        lock = Retention(COMPLIANCE, end)
        minio_server.client().set_object_retention(storing.bucket, locked.key, lock)
        report, _ = await reconcile()
        erasure = await orphans.request_erasure(ledger, report.id, WHO)
        assert await erase_orphans(leader, erasure, seconds=300)
        failed = await storing.reload(erasure)
        [obstacle] = await storing.transact(list_blocked, erasure.id)
        assert (failed.state, failed.objects, failed.retry_at) == ("failed", 1, end)
        assert (obstacle.storage_key, obstacle.retry_at) == (str(locked), end)
        assert "WORM" in obstacle.message
        assert await storing.transact(list_unfinished, failed=False) == []
        assert await storing.transact(certificates.list_certificates, erasure_id=erasure.id) == []
        assert list(storing.blobs.still_there([locked, free])) == [locked]
        assert storing.objects() == {locked.key}  # the object itself, without a delete marker


@pytest.mark.parametrize("backed_up", ["before the report", "after the report"])
async def test_orphans_erased_since_the_backup_keep_their_certificate(
    reconcile: Reconcile,
    engine: AsyncEngine,
    blobs: Blobs,
    bucket: str,
    settings: RetentionSettings,
    backup: Backup,
    restore: Restore,
    backed_up: str,
) -> None:
    keys = [StorageKey(bucket, f"p/{number}") for number in range(3)]
    for key in keys:
        blobs.put(key, b"left over", content_type="text/plain")
    dump = backup()
    report, _ = await reconcile()
    dump = backup() if backed_up == "after the report" else dump
    storing = Storing(engine, blobs)
    leader = make_leader(engine, blobs, settings, certifier=storing.make_certifier(KEY))
    erasure = await orphans.request_erasure(leader.ledger, report.id, WHO)
    assert await erase_orphans(leader, erasure, seconds=300)
    before = await storing.reload(erasure)
    assert (before.state, before.objects) == ("certified", 3)

    older = await restore(dump)
    restored = storing.on(older)
    leader = make_leader(older, blobs, settings, certifier=restored.make_certifier(KEY))
    with pytest.raises(LedgerDiverged):
        await leader.ledger.compare()
    # the key and the certificate too
    assert await leader.ledger.replay() == 4
    again = await restored.reload(erasure)
    assert again.state not in {"certified", "deleted"}
    assert await erase_orphans(leader, again, seconds=300)
    after = await restored.reload(erasure)
    assert (after.state, after.objects) == ("certified", 3)
    assert after.certificate == before.certificate
    assert len(await transact(older, certificates.list_certificates, erasure_id=erasure.id)) == 1
    query = select(func.count()).select_from(erasing_object)
    assert await scalar(older, query) == 0
    verification = Verification(restored.ledger, trusted={KEY.id})
    assert [str(wrong) async for wrong in verification.find_failures()] == []
    assert list(blobs.still_there(keys)) == []


_NOW = datetime.now(UTC)


async def _publish(kafka: KafkaSettings) -> None:
    async with AIOKafkaProducer(bootstrap_servers=kafka.kafka_bootstrap_servers) as producer:
        await producer.send_and_wait(kafka.kafka_topic, b"{}", partition=0)


async def _open_books(
    engine: AsyncEngine, kafka: KafkaSettings, read: int, topic: str = ""
) -> None:
    partition_id = PartitionId(kafka.kafka_cluster, topic or kafka.kafka_topic, 0, 0)
    async with engine.begin() as connection:
        await accounting.open_partition(connection, partition_id, first=0)
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


async def test_messages_of_ground_truth_are_no_events(
    storing: Storing, reconcile: Reconcile, engine: AsyncEngine, kafka: KafkaSettings
) -> None:
    """Their topic is known, and what is stored of them is no inference."""
    await _publish(kafka)
    await _open_books(engine, kafka, 1)
    await _open_books(engine, kafka, 7, topic=kafka.kafka_truth_topic)
    async with engine.begin() as connection:
        here = kafka_partition.c.topic == kafka.kafka_truth_topic
        await connection.execute(kafka_partition.update().where(here).values(stored=7))
    put(storing, "p/model/orphan")
    reconciliation, findings = await reconcile()
    assert (len(findings), reconciliation.count("unjudged")) == (1, 0)
    assert reconciliation.books is not None
    assert reconciliation.books["difference"] == 0


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
    booted_at, reported_at = _NOW - timedelta(hours=booted), _NOW - timedelta(hours=reported)
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
    waited = await transact(engine, stored_reports.list_waiting, now=_NOW)
    hours = sorted(round((_NOW - at) / timedelta(hours=1)) for at, _ in waited)
    assert hours == [0, 30, 50]
    later = await transact(engine, stored_reports.list_waiting, now=_NOW + timedelta(days=8))
    assert [round((_NOW - at) / timedelta(hours=1)) for at, _ in later] == [50]
    stranger = _make_report("unheard", "finder", 1, 0.5, queued=1, spooled=1)
    async with engine.begin() as connection:
        await accounting.store_reports(connection, [ReceivedReport(stranger, partition_id, 0)])
        (waiting_since,) = [
            at for at, _ in await stored_reports.list_waiting(connection, now=_NOW) if at.year == 1
        ]
        # the grace before the earliest time is no error
        with pytest.raises(stored_reports.NotKnown, match="unknown producer"):
            await stored_reports.find_bound(connection, _NOW, grace_seconds=86400)
    assert waiting_since.tzinfo is UTC
