"""Retention runs: what policies delete and what they leave, and policies that change meanwhile."""

import asyncio
from collections.abc import Coroutine
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import func, select

from inference_store.erasure import pending_deletions, policies
from inference_store.erasure.policies import RetentionPolicy
from inference_store.erasure.progress import find_erasures
from inference_store.index.tables import (
    inference,
    partition_span,
    policy_sweep,
    prediction,
    registration,
)
from inference_store.platform.settings import RetentionSettings
from inference_store.query.cql2 import parse_text
from inference_store.query.filters.certain import save
from inference_store.query.filters.names import KnownKeys

from .stored import NOW, Stored, Storing, ago
from .test_holds import Watched


async def test_what_has_expired_goes_with_rows_and_objects(storing: Storing) -> None:
    model, old = await storing.begin(25, ago(days=10))
    new = await storing.inferences(model, 3, ago(days=9, hours=1))
    await storing.keep(model, inference="P9DT2H")
    run = await storing.retain()
    assert (run.state, run.inferences_deleted, run.error) == ("done", 25, None)
    assert await storing.stored() == {stored.uid for stored in new}
    assert storing.objects() == {key.key for stored in new for key in stored.objects}
    rows = await storing.rows()
    assert set(rows.values()) == {3}
    events = [(model, stored.uid) for stored in (*old, *new)]
    erased = await storing.transact(pending_deletions.find_erased, events)
    (erasure,) = await storing.transact(find_erasures)
    assert erased == {(model, stored.uid) for stored in old}
    assert (erasure.state, erasure.inferences, erasure.objects) == ("deleted", 25, 75)


async def test_a_run_of_a_project_is_of_its_models_alone(storing: Storing) -> None:
    models = [await storing.model(name) for name in ("first", "second", "other", "kept")]
    inferences = [await storing.inferences(model, 2, ago(days=10)) for model in models]
    for model in models[:3]:
        await storing.keep(model, inference="P9D")
    moved = registration.update().where(registration.c.model.in_(models[:2]))
    await storing.execute(moved.values(project_id="p"))
    run = await storing.retain(project_id="p")
    assert (run.state, run.inferences_deleted, run.project_id) == ("done", 4, "p")
    assert await storing.stored() == {stored.uid for stored in (*inferences[2], *inferences[3])}
    assert (await storing.retain(project_id="nobody's")).inferences_deleted == 0
    assert (await storing.retain()).inferences_deleted == 2


async def test_an_input_goes_alone(storing: Storing) -> None:
    model, (stored,) = await storing.begin(1, ago(days=2))
    await storing.keep(model, input="P1D", inference="P1M")
    run = await storing.retain()
    assert (run.inputs_deleted, run.inferences_deleted) == (1, 0)
    data, response, metadata = stored.objects
    assert storing.objects() == {response.key, metadata.key}
    assert b"request" not in storing.blobs.get(metadata, limit=1000)
    assert b'"key": "k"' in storing.blobs.get(metadata, limit=1000)
    async with storing.engine.connect() as connection:
        row = (await connection.execute(select(inference))).one()
        answer = (await connection.execute(select(prediction))).one()
    assert row.data_deleted_at is not None
    assert row.data_storage_key == str(data)
    assert (answer.prompt, answer.answer) == (None, "a")
    again = await storing.retain()
    assert again.inputs_deleted == 0


async def test_a_whole_partition_is_dropped_and_remembered(storing: Storing) -> None:
    models = [await storing.model("first"), await storing.model("second")]
    at = ago(days=200)
    gone = [stored for model in models for stored in await storing.inferences(model, 15, at)]
    (kept_inference,) = await storing.inferences(models[0], 1, NOW)
    for model in models:
        await storing.keep(model, inference="P100D")
    run = await storing.retain()
    assert (run.partitions_dropped, run.inferences_deleted) == (1, 30)
    assert await storing.stored() == {kept_inference.uid}
    assert storing.objects() == {key.key for key in kept_inference.objects}
    assert await storing.scalar("SELECT count(*) FROM partition_span") == 1
    assert await storing.scalar("SELECT count(*) FROM tombstone") == 0
    late = storing.uid(at + timedelta(seconds=1))
    candidates = [(gone[0].model, gone[0].uid), (models[0], late), (models[0], kept_inference.uid)]
    erased = await storing.transact(pending_deletions.find_erased, candidates)
    last = (gone[-1].model, gone[-1].uid)
    assert await storing.transact(pending_deletions.find_erased, [last]) == {last}
    # today's policy decides about one that was never there
    assert erased == {(gone[0].model, gone[0].uid)}


async def test_a_run_drops_no_partition_with_inferences_of_others(storing: Storing) -> None:
    """They have expired too, but what goes by a run of one project is that project's alone."""
    first, second = await storing.model("first"), await storing.model("second")
    at = ago(days=200)
    mine, others = [await storing.inferences(model, 3, at) for model in (first, second)]
    for model in (first, second):
        await storing.keep(model, inference="P100D")
    moved = registration.update().where(registration.c.model == first)
    await storing.execute(moved.values(project_id="p"))
    run = await storing.retain(project_id="p")
    assert (run.inferences_deleted, run.partitions_dropped) == (len(mine), 0)
    assert await storing.stored() == {stored.uid for stored in others}
    assert {erasure.model for erasure in await storing.transact(find_erasures)} == {first}
    # all that is left is of this run
    run = await storing.retain(second)
    assert (run.inferences_deleted, run.partitions_dropped) == (len(others), 1)


async def test_a_run_leaves_closed_partitions_of_others_to_a_run_of_all(storing: Storing) -> None:
    models = [await storing.model(name) for name in ("first", "second")]
    for model in models:
        await storing.inferences(model, 3, ago(days=200))
        await storing.keep(model, inference="P100D")
    await storing.execute(partition_span.update().values(state="dropping"))
    run = await storing.retain(models[0])
    assert (run.inferences_deleted, run.partitions_dropped) == (0, 0)
    assert await storing.scalar("SELECT DISTINCT state FROM partition_span") == "dropping"
    run = await storing.retain()
    assert (run.inferences_deleted, run.partitions_dropped) == (6, 1)
    assert await storing.stored() == set()


async def test_forgets_old_tombstones_in_batches(storing: Storing) -> None:
    model = await storing.model()
    at = ago(days=200)
    inferences = await storing.inferences(model, 25, at)
    await storing.keep(model, inference="P100D")
    assert (await storing.retain()).partitions_dropped == 1
    async with storing.engine.begin() as connection:
        for table in ("erased_batch", "erased_span"):
            await connection.exec_driver_sql(
                f"UPDATE {table} SET erased_at = now() - interval '1 day'"
            )
        counts = [
            await pending_deletions.delete_old(connection, older_than_seconds=60, limit=2)
            for _ in range(3)
        ]
        assert counts == [3, 1, 0]
        assert not await pending_deletions.find_erased(connection, [(model, inferences[0].uid)])


async def test_a_closed_span_opens_again_when_the_policy_keeps_it(storing: Storing) -> None:
    model, inferences = await storing.begin(4, ago(days=200))
    async with storing.engine.begin() as connection:
        # as after a crash in the middle of a drop: closed, remembered, and half the parents gone
        await connection.execute(partition_span.update().values(state="dropping"))
        span = (await connection.execute(select(partition_span))).one()
        await connection.exec_driver_sql(
            "INSERT INTO erased_span (model, lo, hi) VALUES ($1, $2, $3)", (model, span.lo, span.hi)
        )
        gone = [stored.uid for stored in inferences[:2]]
        await pending_deletions.add_batch(connection, model, gone)
        await connection.execute(inference.delete().where(inference.c.uid.in_(gone)))
    await storing.keep(model)
    await storing.retain()
    assert await storing.scalar("SELECT state FROM partition_span") == "open"
    assert set((await storing.rows()).values()) == {2}
    candidates = [(model, stored.uid) for stored in inferences]
    erased = await storing.transact(pending_deletions.find_erased, candidates)
    assert erased == {(model, uid) for uid in gone}


LOW = "top_score < 0.4"


def make_rule(keep: str, filter: str | None = None, **more: str) -> dict[str, Any]:
    saved = None if filter is None else save(parse_text(filter), KnownKeys()).text
    return {"keep_input": keep, "keep_inference": keep, "saved": saved, **more}


async def put(storing: Storing, model: int, *rules: dict[str, Any], **more: Any) -> None:
    policy = RetentionPolicy.model_validate({"rules": rules, **more})
    await storing.transact(policies.set_policy, model, policy)


async def set_scores(storing: Storing, stored_inferences: list[Stored], value: float) -> None:
    async with storing.engine.begin() as connection:
        for stored in stored_inferences:
            where = (inference.c.model == stored.model, inference.c.uid == stored.uid)
            await connection.execute(inference.update().where(*where).values(top_score=value))


def list_uids(*stored_inferences: Stored) -> set[UUID]:
    return {stored.uid for stored in stored_inferences}


async def test_the_first_rule_that_is_true_takes_its_own(storing: Storing) -> None:
    model = await storing.model()
    low, high = [await storing.inferences(model, 8, ago(days=2)) for _ in range(2)]
    unknown = await storing.inferences(model, 3, ago(days=2, minutes=5))
    old = await storing.inferences(model, 4, ago(days=40))
    await set_scores(storing, low, 0.1)
    await set_scores(storing, high, 0.9)
    await set_scores(storing, old, 0.9)
    await put(storing, model, make_rule("P1D", LOW), make_rule("P30D"))
    run = await storing.retain()
    assert run.inferences_deleted == 12
    assert await storing.stored() == list_uids(*high, *unknown)
    assert len(storing.objects()) == 3 * 11


async def test_a_scheduled_run_covers_new_data_and_a_requested_one_all(storing: Storing) -> None:
    model = await storing.model()
    await put(storing, model, make_rule("P1D", LOW))
    await storing.retain()
    assert await storing.scalar(select(func.count()).select_from(policy_sweep)) == 3
    behind = await storing.inferences(model, 2, ago(days=2))
    new = await storing.inferences(model, 2, ago(days=1, minutes=10))
    await set_scores(storing, [*behind, *new], 0.1)
    assert (await storing.retain(cause="schedule")).inferences_deleted == 2
    assert await storing.stored() == list_uids(*behind)
    assert (await storing.retain()).inferences_deleted == 2
    await put(storing, model, make_rule("P1D", LOW), make_rule("P9D"))
    changed = await storing.inferences(model, 2, ago(days=2))
    await set_scores(storing, changed, 0.1)
    assert (await storing.retain(cause="schedule")).inferences_deleted == 2


async def test_deletes_a_response_at_its_own_age_and_keeps_predictions(storing: Storing) -> None:
    model, [stored] = await storing.begin(1, ago(days=5))
    shared = await storing.foreign(model, ago(days=5, minutes=1), "d1", "r", None)
    young = await storing.foreign(model, ago(days=1), "d2", "r", None)
    ages = {"keep_input": "forever", "keep_response": "P3D", "keep_inference": "forever"}
    await put(storing, model, ages)
    run = await storing.retain()
    assert (run.responses_deleted, run.inputs_deleted, run.inferences_deleted) == (2, 0, 0)
    [data, response, metadata] = [key.key for key in stored.objects]
    objects = storing.objects()
    assert {data, metadata, "d1", "d2", "r"} <= objects
    assert response not in objects
    gone = select(inference.c.uid).where(inference.c.response_deleted_at.is_not(None))
    assert set(await storing.fetch(gone)) == list_uids(stored, shared)
    assert await storing.scalar(select(func.count()).select_from(prediction)) == 3
    assert await storing.stored() == list_uids(stored, shared, young)
    assert (await storing.retain()).responses_deleted == 0


async def test_the_newest_stay_within_a_limit(storing: Storing) -> None:
    model, other = await storing.model(), await storing.model("other")
    inferences = await storing.inferences(model, 12, ago(days=3))
    newer = await storing.inferences(model, 5, ago(days=1))
    others = await storing.inferences(other, 3, ago(days=3))
    await put(storing, model, max_inferences=7)
    assert (await storing.retain()).inferences_deleted == 10
    assert await storing.stored() == list_uids(*inferences[10:], *newer, *others)
    assert (await storing.retain()).inferences_deleted == 0


async def put_default(storing: Storing, policy: RetentionPolicy, **more: Any) -> None:
    async with storing.engine.begin() as connection:
        body = await policies.describe_change(connection, policies.DEFAULT, policy, **more)
        await policies.apply_set(connection, body, await policies.read_now(connection), "me")


async def test_the_projects_and_the_default_policy_are_carried_out(storing: Storing) -> None:
    model = await storing.model()
    await storing.inferences(model, 3, ago(days=2))
    kept_inferences = await storing.inferences(model, 3, ago(hours=2))
    policy = RetentionPolicy.model_validate({"rules": [make_rule("P1D")]})
    await put_default(storing, policy, grace_seconds=3600)
    assert (await storing.retain()).inferences_deleted == 0  # it waits to begin
    await put_default(storing, policy)
    assert (await storing.retain()).inferences_deleted == 3
    assert await storing.stored() == list_uids(*kept_inferences)


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
    storing: Storing, settings: RetentionSettings, whole: bool
) -> None:
    model, other = await storing.model(), await storing.model("other")
    old = await storing.inferences(model, 35, ago(days=40))
    survivors = [] if whole else await storing.inferences(other, 1, ago(days=40))
    await storing.keep(model, inference="P30D")
    with Watched(settings) as blobs:
        change_midway(blobs, storing.keep(model, inference="P1Y"))
        run = await storing.retain(using=blobs)
    gone = run.inferences_deleted
    # the next batch may be marked while the first is deleted
    assert gone in {10, 20}
    assert await storing.stored() == list_uids(*old[gone:], *survivors)
    assert await storing.scalar("SELECT string_agg(state, ' ') FROM partition_span") == "open"
    assert (await storing.retain()).inferences_deleted == 0
    await storing.keep(model, inference="P30D")
    await storing.retain()
    assert await storing.stored() == list_uids(*survivors)


async def test_a_policy_set_before_looks_at_what_came_under_another(storing: Storing) -> None:
    model = await storing.model()
    await put(storing, model, make_rule("P1D", LOW))
    await storing.retain()
    await put(storing, model, make_rule("P9D"))
    late = await storing.inferences(model, 2, ago(days=2))
    await set_scores(storing, late, 0.1)
    await put(storing, model, make_rule("P1D", LOW))
    assert (await storing.retain(cause="schedule")).inferences_deleted == 2


@pytest.mark.long
async def test_the_next_run_takes_inferences_that_a_hold_released_during_a_run(
    storing: Storing, settings: RetentionSettings
) -> None:
    model, old = await storing.begin(2, ago(days=3))
    await storing.inferences(model, 1, NOW)
    await set_scores(storing, old, 0.1)
    await put(storing, model, make_rule("P1D", LOW))
    placed = await storing.hold(model, None, old[0].uid)
    with Watched(settings) as blobs:
        change_midway(blobs, storing.release(placed))
        assert (await storing.retain(using=blobs)).inferences_deleted == 1
    assert await storing.scalar(select(func.count()).select_from(policy_sweep)) == 0
    assert (await storing.retain(cause="schedule")).inferences_deleted == 1
