"""`kill -9` at every place of an erasure; started again it ends what was begun, exactly once, and
each erasure has one certificate, which is true."""

from pathlib import Path
from signal import SIGKILL

import pytest

from inference_store.erasure import erasures
from inference_store.erasure.certificates import chain
from inference_store.erasure.certificates.archive import Archive
from inference_store.erasure.certificates.keys import new_key
from inference_store.erasure.certificates.signed import read_signed
from inference_store.erasure.certificates.verifying import Verification
from inference_store.index import sidecars
from inference_store.inference.events import StorageKey
from inference_store.platform.failpoints import FAILPOINTS
from tests.service_process import Service

from .stored import Stored, Storing, ago

# A place, and at which passing of it: some passed before, some of another kind.
KEY = new_key()
STEPS = ("mark", "object_delete", "verify", "row_delete", "certify", "partition_drop")
# tests/e2e/faults/deletion/test_kills.py kills at the others
PLACES = [
    name
    for name in FAILPOINTS
    if name.startswith(tuple(f"retention.{step}." for step in STEPS)) and "head.before" not in name
]
KILLS = [*PLACES, "retention.object_delete.after:4", "retention.row_delete.before:3"]


async def stored(storing: Storing) -> tuple[list[Stored], list[Stored]]:
    """Partitions that go whole, one that has survivors, and inputs that go alone."""
    first, second = await storing.model("first"), await storing.model("second")
    gone = await storing.inferences(first, 12, ago(days=200))
    await storing.inferences(second, 3, ago(days=300))
    gone += await storing.inferences(first, 12, ago(days=100))
    kept = await storing.inferences(second, 2, ago(days=100))
    inputs = await storing.inferences(first, 3, ago(days=5))
    for one in (*gone, *inputs):
        await storing.sidecar(one)
    await storing.keep(first, input="P1D", inference="P50D")
    await storing.keep(second, inference="P150D")
    return kept, inputs


@pytest.mark.kills
@pytest.mark.parametrize("kill", KILLS)
async def test_a_kill_loses_nothing_and_leaves_nothing(
    storing: Storing, environment: dict[str, str], tmp_path: Path, kill: str
) -> None:
    kept, inputs = await stored(storing)
    environment = environment | {"INFERENCE_STORE_CERTIFICATE_KEY": KEY.pem}
    failing = Service("retention", environment | {"INFERENCE_STORE_FAILPOINT": kill}, tmp_path)
    assert failing.process.wait(180) == 128 + SIGKILL, failing.text
    service = Service("retention", environment, tmp_path)
    try:
        done = await storing.until_done()
    finally:
        service.stop()
    assert await storing.stored() == {one.uid for one in (*kept, *inputs)}
    assert {key for key in storing.objects() if not key.startswith("certificates/")} == {
        *(key.key for one in kept for key in one.objects),
        *(key.key for one in inputs for key in one.objects[1:]),
        *(f"sidecars/model/{one.uid}" for one in inputs),
    }
    for one in inputs:
        place = StorageKey(storing.bucket, f"sidecars/model/{one.uid}")
        contents = sidecars.decode(storing.blobs.get(place, limit=10_000))
        assert (contents.event, contents.input_deleted) == (b'{"model_id": "model"}', True)
    assert set((await storing.rows()).values()) == {len(kept) + len(inputs)}
    assert await storing.scalar("SELECT sum(inferences) FROM erasure") == 12 + 3 + 12 + 3
    assert sum(run.inferences_deleted for run in done) == 27
    assert sum(run.inputs_deleted for run in done) == 3
    await certified(storing)


async def certified(storing: Storing) -> None:
    """Every erasure by one certificate, together over everything that went, once."""
    async with storing.engine.connect() as connection:
        ended = await erasures.listed(connection)
        signed = [read_signed(row.signed) for row in await chain.listed(connection)]
    assert {one.state for one in ended} == {"certified"}
    named = [one.document["erasure"]["id"] for one in signed]
    assert sorted(named) == sorted(str(one.id) for one in ended)
    said = [one.document["erased"] for one in signed]
    assert sum(each["inferences"] for each in said) == 12 + 3 + 12 + 3
    assert sum(each["objects"] for each in said) == 4 * (12 + 12) + 3 * 3 + 3
    verification = Verification(storing.engine, Archive(storing.blobs), trusted={KEY.id})
    assert [str(wrong) async for wrong in verification.wrongs()] == []
