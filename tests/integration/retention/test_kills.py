"""`kill -9` at every place of an erasure; started again it ends what was begun, exactly once, and
each erasure has one certificate, which is true."""

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from sqlalchemy import text

from inference_store.erasure import certificates, runs
from inference_store.erasure.log import new_key, read_document
from inference_store.erasure.progress import find_erasures
from inference_store.erasure.proofs import Verification
from inference_store.erasure.runs import list_pending, request_run
from inference_store.export.jobs import pack_uids
from inference_store.index import sidecars
from inference_store.inference.events import StorageKey
from inference_store.platform.failpoints import FAILPOINTS
from tests.kill_chain import KillChain, chain_kills
from tests.polling import until
from tests.servers.minio import MinioServer
from tests.service_process import Service

from .exported import PLANTED, Exported, export_all
from .stored import Stored, Storing, ago

# A place, and at which passing of it: some passed before, some of another kind.
KEY = new_key()
STEPS = (
    *("mark", "object_delete", "verify", "row_delete", "certify", "partition_drop"),
    *("export_delete", "export_forget"),
)
# tests/e2e/faults/deletion/test_kills.py kills at the others
RETENTION_FAILPOINTS = [
    name
    for name in FAILPOINTS
    if name.startswith(tuple(f"retention.{step}." for step in STEPS)) and "head.before" not in name
]
KILLS = [*RETENTION_FAILPOINTS, "retention.object_delete.after:4", "retention.row_delete.before:3"]
WHOLE, SWEPT = 6, 7


@dataclass(frozen=True)
class Batch:
    """What is stored, and exported, before one kill."""

    exported: Exported
    kept: Stored
    input: Stored
    """Loses its input alone."""


async def set_policies(storing: Storing) -> tuple[int, int]:
    first, second = await storing.model("first"), await storing.model("second")
    await storing.keep(first, input="P1D", inference="P50D")
    await storing.keep(second, inference="P150D")
    return first, second


async def store_batch(storing: Storing, number: int, first: int, second: int) -> Batch:
    """Store partitions that go whole, one with a survivor, and an input that goes alone."""
    whole_at = ago(days=200 + 100 * number)  # no two batches are in one partition
    gone = await storing.inferences(first, WHOLE, whole_at)
    await storing.inferences(second, 1, whole_at)
    swept_at = ago(days=100, seconds=-20 * number)
    gone += await storing.inferences(first, SWEPT, swept_at)
    [kept] = await storing.inferences(second, 1, swept_at)
    [input] = await storing.inferences(first, 1, ago(days=5, seconds=number))
    for inference in (*gone, input):
        await storing.sidecar(inference)
    exported = await export_all(storing.engine, storing.blobs, [*gone, input])
    if not await storing.transact(list_pending):
        await storing.transact(request_run)
    return Batch(exported, kept, input)


@pytest.mark.kills
@chain_kills(KILLS)
async def test_a_kill_loses_nothing_and_leaves_nothing(
    storing: Storing, environment: dict[str, str], tmp_path: Path, kills: KillChain
) -> None:
    environment = environment | {"INFERENCE_STORE_CERTIFICATE_KEY": KEY.pem}
    models, batches = await set_policies(storing), list[Batch]()
    for number, kill in enumerate(kills):
        batches.append(await store_batch(storing, number, *models))
        own = environment | {"INFERENCE_STORE_FAILPOINT": kill}
        await kills.wait_until_killed(Service("retention", own, tmp_path))
    service = Service("retention", environment, tmp_path)
    try:
        done = await storing.until_done()
        for batch in batches:
            assert (await batch.exported.job()).state == "stale"
    finally:
        await asyncio.to_thread(service.stop)
    inputs, kept = [batch.input for batch in batches], [batch.kept for batch in batches]
    assert await storing.stored() == {inference.uid for inference in (*kept, *inputs)}
    assert {key for key in storing.objects() if not key.startswith("exports/")} == {
        *(key.key for inference in kept for key in inference.objects),
        *(key.key for inference in inputs for key in inference.objects[1:]),
        *(f"sidecars/model/{inference.uid}" for inference in inputs),
    }
    for inference in inputs:
        sidecar_key = StorageKey(storing.bucket, f"sidecars/model/{inference.uid}")
        contents = sidecars.decode(storing.blobs.get(sidecar_key, limit=10_000))
        assert (contents.event, contents.input_deleted) == (b'{"model_id": "model"}', True)
    assert set((await storing.rows()).values()) == {len(kept) + len(inputs)}
    gone = (WHOLE + SWEPT + 1) * len(batches)
    assert await storing.scalar("SELECT sum(inferences) FROM erasure") == gone + len(inputs)
    assert sum(run.inferences_deleted for run in done) == gone
    assert sum(run.inputs_deleted for run in done) == len(inputs)
    await check_certified(storing, batches=len(batches))
    for batch in batches:
        await check_exported(storing, batch)


async def check_exported(storing: Storing, batch: Batch) -> None:
    """Each part that named something erased is gone, and each erasure was recorded once."""
    exported = batch.exported
    parts, erased = await exported.parts(), await exported.erased()
    assert b"".join(part.uids for part in parts) == pack_uids([batch.input.uid])
    names = [f"part {part.number}" for part in parts if part.state == "written"]
    assert names == sorted(name for name in exported.objects() if name.startswith("part "))
    assert sum(row.inferences for row in erased if row.scope == "inference") == WHOLE + SWEPT
    assert sum(row.inferences for row in erased if row.scope == "input") == 1
    assert all(row.deleted_at is not None for row in erased)
    own = [name for name in storing.objects() if str(exported.id) in name]
    assert not any(PLANTED in exported.read(name) for name in own)


async def check_certified(storing: Storing, *, batches: int) -> None:
    """Every erasure by one certificate, together over everything that went, once."""
    ended = await storing.transact(find_erasures, limit=10_000)
    listed = await storing.transact(certificates.list_certificates, limit=10_000)
    signed = [read_document(row.signed) for row in listed]
    assert {erasure.state for erasure in ended} == {"certified"}
    erasure_ids = [document.document["erasure"]["id"] for document in signed]
    assert sorted(erasure_ids) == sorted(str(erasure.id) for erasure in ended)
    erased = [document.document["erased"] for document in signed]
    assert sum(counts["inferences"] for counts in erased) == (WHOLE + SWEPT + 2) * batches
    objects = 4 * (WHOLE + SWEPT) + 3 + 1
    assert sum(counts["objects"] for counts in erased) == objects * batches
    verification = Verification(storing.ledger, trusted={KEY.id})
    assert [str(wrong) async for wrong in verification.find_failures()] == []


async def test_two_replicas_share_the_work_one_after_the_other(
    storing: Storing, environment: dict[str, str], tmp_path: Path
) -> None:
    model = await storing.model()
    await storing.keep(model, inference="P1D")
    folders = [tmp_path / "first", tmp_path / "second"]
    for folder in folders:
        folder.mkdir()
    first = Service("retention", environment, folders[0]).wait_ready()
    await storing.until_done()
    with Service("retention", environment, folders[1]).wait_ready() as second:
        await storing.inferences(model, 12, ago(days=2))
        await storing.transact(runs.request_run)
        first.kill()
        await storing.until_done()
        assert await storing.rows() == {}
        assert storing.objects() == set()
        # the first may have done all of it before it was killed
        await until(lambda: _read_log(second), lambda log_text: "retention leads" in log_text)
    assert "retention stopped" in second.text
    assert await storing.scalar("SELECT sum(inferences) FROM erasure") == 12


@pytest.mark.real_minio
async def test_an_object_store_that_is_away_is_waited_for(
    storing: Storing, environment: dict[str, str], tmp_path: Path, own_minio: MinioServer
) -> None:
    # the objects lie elsewhere: this store is unavailable, and then it is back without them
    own_minio.create_bucket(storing.bucket)
    environment |= {
        "INFERENCE_STORE_S3_ENDPOINT": own_minio.endpoint,
        "INFERENCE_STORE_S3_ACCESS_KEY": own_minio.access_key,
        "INFERENCE_STORE_S3_SECRET_KEY": own_minio.secret_key,
        "INFERENCE_STORE_S3_TIMEOUT_SECONDS": "1",
    }
    model, inferences = await storing.begin(3, ago(days=2))
    await storing.keep(model, inference="P1D")
    own_minio.stop()
    began = time.time()
    with Service("retention", environment, tmp_path) as service:
        await until(lambda: _read_log(service), lambda log_text: '"waiting"' in log_text)
        # No run has ended: late counts from the start.
        assert service.metrics("retention_last_run_timestamp_seconds") >= began
        health = service.health()
        assert not health["ready"]
        assert health["parts"]["postgres"] == "ready"
        assert health["parts"]["ledger"] == "not compared with the bucket yet"
        # nothing is begun before the ledger in the bucket was looked at
        assert await storing.stored() == {inference.uid for inference in inferences}
        assert await storing.scalar("SELECT count(*) FROM erasing") == 0
        own_minio.start()
        await storing.until_done()
        service.wait_ready()
    assert await storing.rows() == {}


async def _read_log(service: Service) -> str:
    return service.text


async def test_a_postgres_that_answers_and_is_not_written_to_is_not_ready(
    storing: Storing, environment: dict[str, str], tmp_path: Path
) -> None:
    await set_read_only(storing, "on")
    with Service("retention", environment, tmp_path) as service:
        await until(lambda: _read_log(service), lambda log_text: '"waiting"' in log_text)
        health = service.health()
        assert not health["ready"]
        assert "read-only" in health["parts"]["postgres"]
        assert health["parts"]["object store"] == "ready"
        await set_read_only(storing, "off")
        service.wait_ready()


async def set_read_only(storing: Storing, value: str) -> None:
    """Set the whole database for whoever connects from now on: other connections are cut off."""
    async with storing.engine.begin() as connection:
        name = await connection.scalar(text("SELECT current_database()"))
        await connection.execute(text("SET TRANSACTION READ WRITE"))
        await connection.execute(
            text(f"ALTER DATABASE \"{name}\" SET default_transaction_read_only = '{value}'")
        )
    await storing.execute(
        text(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
    )
