"""The orphans of a report are erased, and nothing that is none, or that a hold may keep."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from signal import SIGKILL
from uuid import UUID, uuid4

import pytest
from sqlalchemy import insert
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.access import Who
from inference_store.erasure import erasures
from inference_store.erasure.certificates import chain
from inference_store.erasure.certificates.archive import Archive
from inference_store.erasure.certificates.keys import new_key
from inference_store.erasure.certificates.signed import read_signed
from inference_store.erasure.certificates.verifying import Verification
from inference_store.erasure.erasures import Erasure
from inference_store.erasure.ledger import Ledger
from inference_store.erasure.mark import marks
from inference_store.index import dead_letters
from inference_store.index.accounting import PartitionId, open_partition
from inference_store.index.records import Record, Trouble
from inference_store.index.tables import blob_reference, erasing_object, reconciliation
from inference_store.inference.errors import Conflict
from inference_store.inference.events import StorageKey
from inference_store.inference.layout import key_of
from inference_store.objects import Blobs
from inference_store.operations.reconcile import orphans, reconciliations
from inference_store.platform.admin import Heartbeat
from inference_store.platform.failpoints import FAILPOINTS
from inference_store.platform.settings import KafkaSettings, RetentionSettings
from inference_store.retention.certifier import Certifier
from inference_store.retention.leadership_check import LeadershipCheck
from inference_store.retention.orphans import Orphans
from inference_store.retention.worker import RetentionWorker
from tests.integration.retention.conftest import NoPace
from tests.integration.retention.holding import place, release
from tests.integration.retention.stored import NOW, Storing, ago, environment_of
from tests.service_process import Service

from .conftest import Reconcile

KEY = new_key()
WHO = Who("auditor", None)
PLACES = [name for name in FAILPOINTS if name.startswith("orphans.")]
Erase = Callable[[UUID], Awaitable[Erasure]]


def _put(storing: Storing, *keys: str) -> list[str]:
    for key in keys:
        storing.blobs.put(StorageKey(storing.bucket, key), b"left over", content_type="text/plain")
    return sorted(f"s3://{storing.bucket}/{key}" for key in keys)


def _there(storing: Storing) -> set[str]:
    """Objects that are no proof."""
    return {key for key in storing.objects() if not key.startswith(("certificates/", "ledger/"))}


@pytest.fixture
def ledger(engine: AsyncEngine, blobs: Blobs) -> Ledger:
    return Ledger(engine, blobs, prefix="ledger/")


@pytest.fixture
def worker(
    engine: AsyncEngine, blobs: Blobs, ledger: Ledger, settings: RetentionSettings
) -> Orphans:
    certifier = Certifier(engine, blobs, [KEY], events_seconds=3600)
    return Orphans(settings, engine, blobs, ledger, NoPace(), certifier, batch=2)


@pytest.fixture
def erase(engine: AsyncEngine, ledger: Ledger, worker: Orphans) -> Erase:
    """An erasure of a report's orphans to its end."""

    async def carry_out(report: UUID) -> Erasure:
        one = await orphans.request(ledger, report, WHO)
        assert await worker.work(one, seconds=60)
        return await _again(engine, one)

    return carry_out


async def _again(engine: AsyncEngine, one: Erasure) -> Erasure:
    async with engine.connect() as connection:
        found = await erasures.find(connection, one.id)
    assert found is not None
    return found


async def _states(engine: AsyncEngine, report: UUID) -> dict[str, str]:
    async with engine.connect() as connection:
        found = await reconciliations.list_findings(connection, report, limit=1000)
    return {each.storage_key.split("/", 3)[3]: each.state for each in found}


async def test_orphans_go_and_what_is_stored_stays(
    storing: Storing, reconcile: Reconcile, engine: AsyncEngine, erase: Erase
) -> None:
    model = await storing.model()
    stored = await storing.inferences(model, 2, ago(days=1))
    _put(storing, "p/a", "p/b/c", "p/model/2020/01/01/00/x", "sidecars/model/y", "elsewhere/z")
    report, found = await reconcile()
    assert len(found) == 4
    async with engine.connect() as connection:
        told = await orphans.estimate_orphans(connection, report.id)
    assert (told.objects, told.bytes, told.held, told.kept) == (4, 36, 0, 0)
    one = await erase(report.id)
    assert (one.state, one.objects, one.bytes, one.inferences) == ("certified", 4, 36, 0)
    left = {key.key for each in stored for key in each.objects}
    assert _there(storing) == left | {"elsewhere/z"}
    assert set((await _states(engine, report.id)).values()) == {"erased"}
    async with engine.connect() as connection:
        (row,) = await chain.listed(connection, of=one.id)
    said = read_signed(row.signed).document
    assert (said["erased"]["objects"], said["erasure"]["cause"]) == (4, "orphans")
    assert said["erasure"]["asked"] == {"report": str(report.id)}
    verification = Verification(engine, Archive(storing.blobs), trusted={KEY.id})
    assert [str(wrong) async for wrong in verification.wrongs()] == []
    report, found = await reconcile()
    assert found == []


async def test_what_is_no_orphan_any_more_stays(
    storing: Storing,
    reconcile: Reconcile,
    engine: AsyncEngine,
    erase: Erase,
    kafka: KafkaSettings,
) -> None:
    model = await storing.model()
    _put(storing, "p/gone", "p/stored", "p/dead", "p/written again")
    report, _ = await reconcile()
    at = PartitionId(kafka.kafka_cluster, kafka.kafka_topic, 0, 0)
    letter = Record(at, 1, NOW, None, b'{"data_storage_key": "p/dead"}', ())
    values = {"model": model, "uid": storing.uid(NOW), "storage_key": None}
    async with engine.begin() as connection:
        key = f"s3://{storing.bucket}/p/stored"
        await connection.execute(insert(blob_reference).values(values | {"storage_key": key}))
        await open_partition(connection, at, first=0, began="first")
        trouble = Trouble("invalid_time", "x", "model", "1")
        await dead_letters.add(connection, [(letter, trouble)])
    _put(storing, "p/written again")
    one = await erase(report.id)
    assert (one.state, one.objects) == ("certified", 1)
    assert _there(storing) == {"p/stored", "p/dead", "p/written again"}
    kept = {"p/stored": "kept", "p/dead": "kept", "p/written again": "kept"}
    assert await _states(engine, report.id) == kept | {"p/gone": "erased"}


async def test_what_a_hold_may_keep_stays_until_it_is_released(
    storing: Storing, reconcile: Reconcile, engine: AsyncEngine, erase: Erase
) -> None:
    held, free = await storing.model("held/model"), await storing.model("free")
    of_held = key_of("p", "held/model", ago(days=3), uuid4(), "data")
    of_free = key_of("p", "free", ago(days=3), uuid4(), "data")
    _put(storing, of_held, of_free, "sidecars/held%2Fmodel/x", "sidecars/free/x", "p/whose")
    hold = await place(engine, held, "ok")
    report, _ = await reconcile()
    async with engine.connect() as connection:
        told = await orphans.estimate_orphans(connection, report.id)
    assert (told.objects, told.held) == (2, 3)
    one = await erase(report.id)
    assert (one.state, one.objects, one.held) == ("certified", 2, 3)
    assert _there(storing) == {of_held, "sidecars/held%2Fmodel/x", "p/whose"}
    assert {s for k, s in (await _states(engine, report.id)).items() if k in _there(storing)} == {
        "held"
    }
    await release(engine, hold)
    everything = await place(engine, None, "ok")
    report, _ = await reconcile()
    assert (await erase(report.id)).objects == 0
    await release(engine, everything)
    report, _ = await reconcile()
    assert (await erase(report.id)).objects == 3
    assert _there(storing) == set()
    assert free != held


async def test_a_hold_that_comes_before_the_claim_wins(
    storing: Storing,
    reconcile: Reconcile,
    engine: AsyncEngine,
    ledger: Ledger,
    blobs: Blobs,
    settings: RetentionSettings,
) -> None:
    await storing.model()
    _put(storing, "p/1", "p/2", "p/3")
    report, _ = await reconcile()
    one = await orphans.request(ledger, report.id, WHO)
    worker = Orphans(settings, engine, blobs, ledger, _Holding(engine), None)
    assert await worker.work(one, seconds=60)
    assert _there(storing) == {"p/1", "p/2", "p/3"}
    ended = await _again(engine, one)
    assert (ended.state, ended.marked, ended.held) == ("deleted", 3, 3)


class _Holding(NoPace):
    """Before the second step, when the ledger has the keys and nothing is claimed, a hold comes."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._steps = 0

    async def confirm_step(self) -> None:
        self._steps += 1
        if self._steps == 2:
            await place(self._engine, None, "ok")


async def test_an_event_that_comes_after_the_claim_is_not_stored(
    storing: Storing, engine: AsyncEngine
) -> None:
    (key,) = _put(storing, "p/late")
    async with engine.begin() as connection:
        values = {"storage_key": key, "erasure": uuid4()}
        await connection.execute(insert(erasing_object).values(values))
        assert await marks.claimed(connection, [key]) == set()
        await connection.execute(erasing_object.update().values(claimed_at=NOW))
        assert await marks.claimed(connection, [key]) == {key}


async def test_a_report_that_is_old_or_not_over_is_refused(
    storing: Storing, reconcile: Reconcile, engine: AsyncEngine, ledger: Ledger, erase: Erase
) -> None:
    _put(storing, "p/x")
    report, _ = await reconcile()
    async with engine.begin() as connection:
        fresh = await reconciliations.request(connection, model_id=None, cause="request")
        old = reconciliation.update().where(reconciliation.c.id == report.id)
        await connection.execute(old.values(finished_at=ago(days=2)))
    for id, why in ((report.id, "older than a day"), (fresh.id, "pending")):
        with pytest.raises(Conflict, match=why):
            await orphans.request(ledger, id, WHO)
    async with engine.begin() as connection:
        await connection.execute(old.values(finished_at=NOW))
    assert (await erase(report.id)).objects == 1
    with pytest.raises(Conflict, match="is of the orphans"):
        await orphans.request(ledger, report.id, WHO)


async def test_a_cancelled_one_leaves_everything(
    storing: Storing, reconcile: Reconcile, engine: AsyncEngine, ledger: Ledger, worker: Orphans
) -> None:
    _put(storing, "p/x", "p/y")
    report, _ = await reconcile()
    one = await orphans.request(ledger, report.id, WHO)
    async with engine.begin() as connection:
        await erasures.cancel(connection, one.id)
    assert await worker.work(one, seconds=60)
    assert (await _again(engine, one)).state == "cancelled"
    assert _there(storing) == {"p/x", "p/y"}
    assert await orphans.request(ledger, report.id, WHO) != one


@pytest.mark.kills
@pytest.mark.parametrize("kill", PLACES)
async def test_a_kill_leaves_one_true_certificate(
    storing: Storing,
    reconcile: Reconcile,
    engine: AsyncEngine,
    ledger: Ledger,
    settings: RetentionSettings,
    tmp_path: Path,
    kill: str,
) -> None:
    _put(storing, *(f"p/{number}" for number in range(5)))
    report, _ = await reconcile()
    one = await orphans.request(ledger, report.id, WHO)
    environment = environment_of(settings) | {
        "INFERENCE_STORE_CERTIFICATE_KEY": KEY.pem,
        "INFERENCE_STORE_RECONCILE_GRACE_SECONDS": "0",
    }
    failing = Service("retention", environment | {"INFERENCE_STORE_FAILPOINT": kill}, tmp_path)
    assert failing.process.wait(60) == 128 + SIGKILL, failing.text
    async with asyncio.timeout(60):
        await _led(engine, Blobs(settings), settings)
    done = await _again(engine, one)
    assert (done.state, done.objects) == ("certified", 5)
    assert _there(storing) == set()
    async with engine.connect() as connection:
        (row,) = await chain.listed(connection, of=one.id)
    assert read_signed(row.signed).document["erased"]["objects"] == 5
    assert await storing.scalar("SELECT count(*) FROM erasing_object") == 0


async def _led(engine: AsyncEngine, blobs: Blobs, settings: RetentionSettings) -> None:
    """One turn of a service that leads."""
    named = {"certificate_key": KEY.pem}
    again = RetentionSettings.model_validate(settings.model_dump() | named)
    leader = RetentionWorker(again, engine, blobs, _Led(), asyncio.Event())
    with blobs:
        await leader.begin()
        await leader.run_turn()


class _Led(NoPace):
    """As NoPace, with all that a leader's turn asks."""

    unless_stopped = LeadershipCheck.unless_stopped

    def __init__(self) -> None:
        self._stop = asyncio.Event()
        self._heartbeat = Heartbeat()
