"""A hold placed beside a killed erasure keeps everything that it had not claimed."""

import asyncio
from pathlib import Path

import pytest

from inference_store.erasure.progress.erasure import Erasure
from tests.kill_chain import KillChain, chain_kills
from tests.service_process import Service

from .stored import Stored, Storing, ago

# A step, and at which of its passings: the batches are of five.
KILLS = [
    f"retention.{step}:{passing}"
    for step in (
        *("object_delete.before", "object_delete.after", "verify.before", "verify.after"),
        *("row_delete.before", "row_delete.after"),
    )
    for passing in (1, 2)
]


_DOOMED = 14


@pytest.mark.kills
@chain_kills(KILLS)
async def test_nothing_held_is_gone_but_what_the_answer_lists(
    storing: Storing, environment: dict[str, str], tmp_path: Path, kills: KillChain
) -> None:
    model = await storing.model()
    doomed, erasures = list[Stored](), list[Erasure]()
    held, safe = list[Stored](), list[Stored]()
    for number, kill in enumerate(kills):
        doomed += await storing.inferences(model, _DOOMED, ago(days=1, seconds=-20 * number))
        erasures.append(await storing.request(*doomed[-_DOOMED:]))
        own = environment | {"INFERENCE_STORE_FAILPOINT": kill}
        await kills.wait_until_killed(Service("retention", own, tmp_path))
        # Those that are next: some were claimed by the process that died.
        remaining = await storing.stored() - {inference.uid for inference in held}
        next_ones = [inference for inference in doomed if inference.uid in remaining]
        newly_held = next_ones[1:_DOOMED:2]
        uids = [inference.uid for inference in newly_held]
        placed = await storing.hold(model, None, *uids)
        claimed = {claim.uid for claim in placed.claimed}
        newly_safe = [inference for inference in newly_held if inference.uid not in claimed]
        assert newly_safe, kill
        held += newly_held
        safe += newly_safe
    service = Service("retention", environment, tmp_path)
    try:
        for erasure in erasures:
            await storing.until_ended(erasure.id)
    finally:
        await asyncio.to_thread(service.stop)
    # What was claimed is asked again: its rows stay, though its objects may be gone.
    assert await storing.stored() == {inference.uid for inference in held}
    assert {key.key for inference in safe for key in inference.objects} <= storing.objects()
    gone = {key.key for inference in doomed if inference not in held for key in inference.objects}
    assert not gone & storing.objects()
    ended = [await storing.reload(erasure) for erasure in erasures]
    assert sum(erasure.held for erasure in ended) == len(held)
