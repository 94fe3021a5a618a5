"""A hold placed beside a killed erasure keeps everything that it had not claimed."""

from pathlib import Path
from signal import SIGKILL

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from tests.service_process import Service

from .holding import place_hold
from .stored import Storing, ago
from .test_erasures import reload_erasure, request

# A step, and at which of its passings: the batches are of five.
KILLS = [
    f"retention.{step}:{passing}"
    for step in (
        *("object_delete.before", "object_delete.after", "verify.before", "verify.after"),
        *("row_delete.before", "row_delete.after"),
    )
    for passing in (1, 2)
]


@pytest.mark.kills
@pytest.mark.parametrize("kill", KILLS)
async def test_nothing_held_is_gone_but_what_the_answer_lists(
    storing: Storing, engine: AsyncEngine, environment: dict[str, str], tmp_path: Path, kill: str
) -> None:
    model = await storing.model()
    doomed = await storing.inferences(model, 24, ago(days=1))
    erasure = await request(engine, *doomed)
    failing = Service("retention", environment | {"INFERENCE_STORE_FAILPOINT": kill}, tmp_path)
    assert failing.process.wait(180) == 128 + SIGKILL, failing.text
    remaining = await storing.stored()
    expected = [inference for inference in doomed[1::2] if inference.uid in remaining]
    placed = await place_hold(engine, model, None, *(inference.uid for inference in doomed[1::2]))
    claimed = {claim.uid for claim in placed.claimed}
    safe = [inference for inference in expected if inference.uid not in claimed]
    assert safe
    service = Service("retention", environment, tmp_path)
    try:
        await storing.until_partly_held(erasure.id)
    finally:
        service.stop()
    # What was claimed is asked again: its rows stay, though its objects may be gone.
    assert await storing.stored() == {inference.uid for inference in expected}
    assert {key.key for inference in safe for key in inference.objects} <= storing.objects()
    gone = {
        key.key for inference in doomed if inference not in expected for key in inference.objects
    }
    assert not gone & storing.objects()
    assert (await reload_erasure(engine, erasure)).held == len(expected)
