"""A hold placed while a killed erasure lies there: what it had not claimed is there in the end."""

from pathlib import Path
from signal import SIGKILL

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from tests.service_process import Service

from .holding import place
from .stored import Storing, ago
from .test_erasures import found, request

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
    asked = await request(engine, *doomed)
    failing = Service("retention", environment | {"INFERENCE_STORE_FAILPOINT": kill}, tmp_path)
    assert failing.process.wait(180) == 128 + SIGKILL, failing.text
    left = await storing.stored()
    wanted = [one for one in doomed[1::2] if one.uid in left]
    placed = await place(engine, model, None, *(one.uid for one in doomed[1::2]))
    claimed = {claim.uid for claim in placed.claimed}
    safe = [one for one in wanted if one.uid not in claimed]
    assert safe
    service = Service("retention", environment, tmp_path)
    try:
        await storing.until_partly_held(asked.id)
    finally:
        service.stop()
    # What was claimed is asked again: its rows stay, though its objects may be gone.
    assert await storing.stored() == {one.uid for one in wanted}
    assert {key.key for one in safe for key in one.objects} <= storing.objects()
    gone = {key.key for one in doomed if one not in wanted for key in one.objects}
    assert not gone & storing.objects()
    assert (await found(engine, asked)).held == len(wanted)
