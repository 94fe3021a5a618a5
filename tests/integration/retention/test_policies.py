"""Policies carried out by the real service: filters, three ages, limits, held ones, frontiers."""

from typing import Any
from uuid import UUID

from sqlalchemy import func, select

from inference_store.erasure import policies
from inference_store.erasure.policies import RetentionPolicy
from inference_store.index.tables import inference, policy_sweep, prediction
from inference_store.query.cql2 import parse_text
from inference_store.query.filters.known_keys import KnownKeys
from inference_store.query.filters.saved import save
from tests.polling import until

from .conftest import Retain
from .stored import Stored, Storing, ago

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


async def test_the_first_rule_that_is_true_takes_its_own(storing: Storing, retain: Retain) -> None:
    model = await storing.model()
    low, high = [await storing.inferences(model, 8, ago(days=2)) for _ in range(2)]
    unknown = await storing.inferences(model, 3, ago(days=2, minutes=5))
    old = await storing.inferences(model, 4, ago(days=40))
    await set_scores(storing, low, 0.1)
    await set_scores(storing, high, 0.9)
    await set_scores(storing, old, 0.9)
    await put(storing, model, make_rule("P1D", LOW), make_rule("P30D"))
    run = await retain()
    assert run.inferences_deleted == 12
    assert await storing.stored() == list_uids(*high, *unknown)
    assert len(storing.objects()) == 3 * 11


async def test_a_scheduled_run_covers_new_data_and_a_requested_run_everything(
    storing: Storing, retain: Retain
) -> None:
    model = await storing.model()
    await put(storing, model, make_rule("P1D", LOW))
    await retain()
    assert await storing.scalar(select(func.count()).select_from(policy_sweep)) == 3
    behind = await storing.inferences(model, 2, ago(days=2))
    new = await storing.inferences(model, 2, ago(days=1, minutes=10))
    await set_scores(storing, [*behind, *new], 0.1)
    assert (await retain(cause="schedule")).inferences_deleted == 2
    assert await storing.stored() == list_uids(*behind)
    assert (await retain()).inferences_deleted == 2
    await put(storing, model, make_rule("P1D", LOW), make_rule("P9D"))
    changed = await storing.inferences(model, 2, ago(days=2))
    await set_scores(storing, changed, 0.1)
    assert (await retain(cause="schedule")).inferences_deleted == 2


async def test_deletes_a_response_at_its_own_age_and_keeps_predictions(
    storing: Storing, retain: Retain
) -> None:
    model = await storing.model()
    [stored] = await storing.inferences(model, 1, ago(days=5))
    shared = await storing.foreign(model, ago(days=5, minutes=1), "d1", "r", None)
    young = await storing.foreign(model, ago(days=1), "d2", "r", None)
    ages = {"keep_input": "forever", "keep_response": "P3D", "keep_inference": "forever"}
    await put(storing, model, ages)
    run = await retain()
    assert (run.responses_deleted, run.inputs_deleted, run.inferences_deleted) == (2, 0, 0)
    [data, response, metadata] = [key.key for key in stored.objects]
    objects = storing.objects()
    assert {data, metadata, "d1", "d2", "r"} <= objects
    assert response not in objects
    async with storing.engine.connect() as connection:
        gone = select(inference.c.uid).where(inference.c.response_deleted_at.is_not(None))
        assert set((await connection.execute(gone)).scalars()) == list_uids(stored, shared)
        assert await connection.scalar(select(func.count()).select_from(prediction)) == 3
    assert await storing.stored() == list_uids(stored, shared, young)
    assert (await retain()).responses_deleted == 0


async def test_the_newest_stay_within_a_limit(storing: Storing, retain: Retain) -> None:
    model, other = await storing.model(), await storing.model("other")
    inferences = await storing.inferences(model, 12, ago(days=3))
    newer = await storing.inferences(model, 5, ago(days=1))
    others = await storing.inferences(other, 3, ago(days=3))
    await put(storing, model, max_inferences=7)
    assert (await retain()).inferences_deleted == 10
    assert await storing.stored() == list_uids(*inferences[10:], *newer, *others)
    assert (await retain()).inferences_deleted == 0


async def test_reads_sizes_from_the_bucket_and_deletes_the_oldest(
    storing: Storing, retain: Retain
) -> None:
    model = await storing.model()
    inferences = await storing.inferences(model, 10, ago(days=3))
    await put(storing, model, max_bytes=10**9)
    await retain()
    known_sizes = await wait_for_sizes(storing)
    assert len(set(known_sizes)) == 1
    size = known_sizes[0]
    await put(storing, model, max_bytes=4 * size + size // 2)
    assert (await retain()).inferences_deleted == 6
    assert await storing.stored() == list_uids(*inferences[6:])


async def test_reads_sizes_while_a_limit_waits_to_begin(storing: Storing, retain: Retain) -> None:
    """The inferences that a limit takes can be previewed before it takes them."""
    model = await storing.model()
    await storing.inferences(model, 3, ago(days=3))
    await put_default(storing, RetentionPolicy(max_bytes=1), grace_seconds=3600)
    assert (await retain()).inferences_deleted == 0
    assert len(await wait_for_sizes(storing)) == 3


async def wait_for_sizes(storing: Storing) -> list[int]:
    """Wait until the sizes of all inferences are known, and return them."""

    async def read() -> list[Any]:
        async with storing.engine.connect() as connection:
            query = select(inference.c.stored_bytes).order_by(inference.c.uid)
            return list((await connection.execute(query)).scalars())

    return await until(read, lambda sizes: None not in sizes)


async def put_default(storing: Storing, policy: RetentionPolicy, **more: Any) -> None:
    """Set the policy of all models."""
    async with storing.engine.begin() as connection:
        body = await policies.describe_change(connection, policies.DEFAULT, policy, **more)
        await policies.apply_set(connection, body, await policies.read_now(connection), "me")


async def test_the_projects_and_the_default_policy_are_carried_out(
    storing: Storing, retain: Retain
) -> None:
    model = await storing.model()
    await storing.inferences(model, 3, ago(days=2))
    kept_inferences = await storing.inferences(model, 3, ago(hours=2))
    policy = RetentionPolicy.model_validate({"rules": [make_rule("P1D")]})
    await put_default(storing, policy, grace_seconds=3600)
    assert (await retain()).inferences_deleted == 0  # it waits to begin
    await put_default(storing, policy)
    assert (await retain()).inferences_deleted == 3
    assert await storing.stored() == list_uids(*kept_inferences)
