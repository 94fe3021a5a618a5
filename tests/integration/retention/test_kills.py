"""`kill -9` at every place of an erasure; started again it ends what was begun, exactly once, and
each erasure has one certificate, which is true."""

from collections.abc import Sequence
from pathlib import Path
from signal import SIGKILL

import pytest
from sqlalchemy import select

from inference_store.erasure.certify import chain
from inference_store.erasure.certify.archive import Archive
from inference_store.erasure.certify.verification import Verification
from inference_store.erasure.log.keys import new_key
from inference_store.erasure.log.signed_document import read_document
from inference_store.erasure.progress.erasure import find_erasures
from inference_store.export.jobs.members import pack_uids
from inference_store.index import sidecars, tables
from inference_store.inference.events import StorageKey
from inference_store.platform.failpoints import FAILPOINTS
from tests.polling import until
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


async def store_inferences(storing: Storing) -> tuple[list[Stored], list[Stored]]:
    """Store partitions that go whole, one with survivors, and inputs that go alone."""
    first, second = await storing.model("first"), await storing.model("second")
    gone = await storing.inferences(first, 12, ago(days=200))
    await storing.inferences(second, 3, ago(days=300))
    gone += await storing.inferences(first, 12, ago(days=100))
    kept_inferences = await storing.inferences(second, 2, ago(days=100))
    inputs = await storing.inferences(first, 3, ago(days=5))
    for inference in (*gone, *inputs):
        await storing.sidecar(inference)
    await storing.keep(first, input="P1D", inference="P50D")
    await storing.keep(second, inference="P150D")
    return kept_inferences, inputs


@pytest.mark.kills
@pytest.mark.parametrize("kill", KILLS)
async def test_a_kill_loses_nothing_and_leaves_nothing(
    storing: Storing, environment: dict[str, str], tmp_path: Path, kill: str
) -> None:
    kept_inferences, inputs = await store_inferences(storing)
    exported = await export_stored(storing, inputs)
    environment = environment | {"INFERENCE_STORE_CERTIFICATE_KEY": KEY.pem}
    failing = Service("retention", environment | {"INFERENCE_STORE_FAILPOINT": kill}, tmp_path)
    assert failing.process.wait(180) == 128 + SIGKILL, failing.text
    service = Service("retention", environment, tmp_path)
    try:
        done = await storing.until_done()
        await until(exported.job, lambda job: job.state == "done")
    finally:
        service.stop()
    assert await storing.stored() == {inference.uid for inference in (*kept_inferences, *inputs)}
    assert {key for key in storing.objects() if not key.startswith("exports/")} == {
        *(key.key for inference in kept_inferences for key in inference.objects),
        *(key.key for inference in inputs for key in inference.objects[1:]),
        *(f"sidecars/model/{inference.uid}" for inference in inputs),
    }
    for inference in inputs:
        sidecar_key = StorageKey(storing.bucket, f"sidecars/model/{inference.uid}")
        contents = sidecars.decode(storing.blobs.get(sidecar_key, limit=10_000))
        assert (contents.event, contents.input_deleted) == (b'{"model_id": "model"}', True)
    assert set((await storing.rows()).values()) == {len(kept_inferences) + len(inputs)}
    assert await storing.scalar("SELECT sum(inferences) FROM erasure") == 12 + 3 + 12 + 3
    assert sum(run.inferences_deleted for run in done) == 27
    assert sum(run.inputs_deleted for run in done) == 3
    await check_certified(storing)
    await check_exported(storing, exported, inputs)


async def export_stored(storing: Storing, inputs: Sequence[Stored]) -> Exported:
    """Export what goes with its rows, and what only loses its input."""
    model = inputs[0].model
    async with storing.engine.connect() as connection:
        uids = await connection.scalars(
            select(tables.inference.c.uid).where(tables.inference.c.model == model)
        )
    members = [Stored(model, uid, (None, None, None)) for uid in uids]
    return await export_all(storing.engine, storing.blobs, members)


async def check_exported(storing: Storing, exported: Exported, inputs: Sequence[Stored]) -> None:
    """The export is whole again, without what was erased, and each erasure was recorded once."""
    parts, erased = await exported.parts(), await exported.erased()
    assert b"".join(part.uids for part in parts) == pack_uids(sorted(i.uid for i in inputs))
    names = [f"part {part.number}" for part in parts if part.state == "written"]
    assert names == sorted(name for name in exported.objects() if name.startswith("part "))
    assert sum(row.inferences for row in erased if row.scope == "inference") == 24
    assert sum(row.inferences for row in erased if row.scope == "input") == 3
    assert all(row.deleted_at is not None and row.leaves for row in erased)
    everything = b"".join(map(exported.read, storing.objects()))
    assert PLANTED not in everything


async def check_certified(storing: Storing) -> None:
    """Every erasure by one certificate, together over everything that went, once."""
    async with storing.engine.connect() as connection:
        ended = await find_erasures(connection)
        signed = [read_document(row.signed) for row in await chain.list_certificates(connection)]
    assert {erasure.state for erasure in ended} == {"certified"}
    erasure_ids = [document.document["erasure"]["id"] for document in signed]
    assert sorted(erasure_ids) == sorted(str(erasure.id) for erasure in ended)
    counts_of_erased = [document.document["erased"] for document in signed]
    assert sum(counts["inferences"] for counts in counts_of_erased) == 12 + 3 + 12 + 3
    assert sum(counts["objects"] for counts in counts_of_erased) == 4 * (12 + 12) + 3 * 3 + 3
    verification = Verification(storing.engine, Archive(storing.blobs), trusted={KEY.id})
    assert [str(wrong) async for wrong in verification.find_failures()] == []
