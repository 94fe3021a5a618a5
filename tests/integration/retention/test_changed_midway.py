"""A policy, or a hold, that changes while a run is under way wins from that moment on."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from sqlalchemy import func, select

from inference_store.index.tables import policy_sweep
from inference_store.platform.settings import RetentionSettings

from .conftest import Retain
from .stored import NOW, Storing, ago
from .test_holds import Watched
from .test_policies import LOW, list_uids, make_rule, put, set_scores


def change_midway(blobs: Watched, change: Coroutine[Any, Any, Any]) -> None:
    """Make a change while the first objects are being deleted."""
    loop, pending = asyncio.get_running_loop(), [change]

    def tell(_: str) -> None:
        if pending:
            asyncio.run_coroutine_threadsafe(pending.pop(), loop).result(180)

    blobs.tell = tell


@pytest.mark.long
@pytest.mark.parametrize("whole", [False, True])
async def test_a_longer_policy_keeps_inferences_that_are_not_marked_yet(
    storing: Storing, settings: RetentionSettings, retain: Retain, whole: bool
) -> None:
    model, other = await storing.model(), await storing.model("other")
    old = await storing.inferences(model, 35, ago(days=40))
    survivors = [] if whole else await storing.inferences(other, 1, ago(days=40))
    await storing.keep(model, inference="P30D")
    with Watched(settings) as blobs:
        change_midway(blobs, storing.keep(model, inference="P1Y"))
        run = await retain(using=blobs)
    gone = run.inferences_deleted
    # the next batch may be marked while the first is deleted
    assert gone in {10, 20}
    assert await storing.stored() == list_uids(*old[gone:], *survivors)
    assert await storing.scalar("SELECT string_agg(state, ' ') FROM partition_span") == "open"
    assert (await retain()).inferences_deleted == 0
    await storing.keep(model, inference="P30D")
    await retain()
    assert await storing.stored() == list_uids(*survivors)


@pytest.mark.long
async def test_a_run_continues_under_a_shortened_policy(
    storing: Storing, settings: RetentionSettings, retain: Retain
) -> None:
    model = await storing.model()
    older = await storing.inferences(model, 15, ago(days=400))
    kept_inferences = await storing.inferences(model, 5, ago(days=300))
    await storing.keep(model, inference="P350D")
    with Watched(settings) as blobs:
        change_midway(blobs, storing.keep(model, inference="P200D"))
        await retain(using=blobs)
    await retain()
    assert await storing.stored() == set()
    assert len(older + kept_inferences) == 20


async def test_a_policy_that_was_set_before_looks_at_what_came_under_another(
    storing: Storing, retain: Retain
) -> None:
    model = await storing.model()
    await put(storing, model, make_rule("P1D", LOW))
    await retain()
    await put(storing, model, make_rule("P9D"))
    late = await storing.inferences(model, 2, ago(days=2))
    await set_scores(storing, late, 0.1)
    await put(storing, model, make_rule("P1D", LOW))
    assert (await retain(cause="schedule")).inferences_deleted == 2


@pytest.mark.long
async def test_the_next_run_takes_inferences_that_a_hold_released_during_a_run(
    storing: Storing, settings: RetentionSettings, retain: Retain
) -> None:
    model = await storing.model()
    old = await storing.inferences(model, 2, ago(days=3))
    await storing.inferences(model, 1, NOW)
    await set_scores(storing, old, 0.1)
    await put(storing, model, make_rule("P1D", LOW))
    placed = await storing.hold(model, None, old[0].uid)
    with Watched(settings) as blobs:
        change_midway(blobs, storing.release(placed))
        assert (await retain(using=blobs)).inferences_deleted == 1
    assert await storing.scalar(select(func.count()).select_from(policy_sweep)) == 0
    assert (await retain(cause="schedule")).inferences_deleted == 1
