"""Policies carried out by the real service: filters, three ages, limits, held ones, frontiers."""

from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

from sqlalchemy import func, select

from inference_store.erasure import policies
from inference_store.erasure.policies import RetentionPolicy
from inference_store.index.tables import inference, policy_sweep, prediction
from inference_store.query.cql2 import parse_text
from inference_store.query.filters.known import Known
from inference_store.query.filters.saved import save
from tests.integration.retention.stored import Stored, Storing, ago
from tests.polling import until

Retain = Callable[..., Awaitable[Any]]
LOW = "top_score < 0.4"


def rule(keep: str, filter: str | None = None, **more: str) -> dict[str, Any]:
    saved = None if filter is None else save(parse_text(filter), Known()).text
    return {"keep_input": keep, "keep_inference": keep, "saved": saved, **more}


async def put(storing: Storing, model: int, *rules: dict[str, Any], **more: Any) -> None:
    policy = RetentionPolicy.model_validate({"rules": rules, **more})
    async with storing.engine.begin() as connection:
        await policies.put(connection, model, policy)


async def score(storing: Storing, made: list[Stored], value: float) -> None:
    async with storing.engine.begin() as connection:
        for one in made:
            where = (inference.c.model == one.model, inference.c.uid == one.uid)
            await connection.execute(inference.update().where(*where).values(top_score=value))


def uids(*made: Stored) -> set[UUID]:
    return {one.uid for one in made}


async def test_the_first_rule_that_is_true_takes_its_own(storing: Storing, retain: Retain) -> None:
    model = await storing.model()
    low, high = [await storing.inferences(model, 8, ago(days=2)) for _ in range(2)]
    unknown = await storing.inferences(model, 3, ago(days=2, minutes=5))
    old = await storing.inferences(model, 4, ago(days=40))
    await score(storing, low, 0.1)
    await score(storing, high, 0.9)
    await score(storing, old, 0.9)
    await put(storing, model, rule("P1D", LOW), rule("P30D"))
    run = await retain()
    assert run.inferences_deleted == 12
    assert await storing.stored() == uids(*high, *unknown)
    assert len(storing.objects()) == 3 * 11


async def test_a_scheduled_run_looks_at_what_is_new_and_one_asked_for_at_everything(
    storing: Storing, retain: Retain
) -> None:
    model = await storing.model()
    await put(storing, model, rule("P1D", LOW))
    await retain()
    async with storing.engine.connect() as connection:
        assert await connection.scalar(select(func.count()).select_from(policy_sweep)) == 3
    behind = await storing.inferences(model, 2, ago(days=2))
    new = await storing.inferences(model, 2, ago(days=1, minutes=10))
    await score(storing, [*behind, *new], 0.1)
    assert (await retain(cause="schedule")).inferences_deleted == 2
    assert await storing.stored() == uids(*behind)
    assert (await retain()).inferences_deleted == 2
    await put(storing, model, rule("P1D", LOW), rule("P9D"))
    changed = await storing.inferences(model, 2, ago(days=2))
    await score(storing, changed, 0.1)
    assert (await retain(cause="schedule")).inferences_deleted == 2


async def test_a_response_goes_at_its_own_age_and_its_predictions_stay(
    storing: Storing, retain: Retain
) -> None:
    model = await storing.model()
    [one] = await storing.inferences(model, 1, ago(days=5))
    shared = await storing.foreign(model, ago(days=5, minutes=1), "d1", "r", None)
    young = await storing.foreign(model, ago(days=1), "d2", "r", None)
    ages = {"keep_input": "forever", "keep_response": "P3D", "keep_inference": "forever"}
    await put(storing, model, ages)
    run = await retain()
    assert (run.responses_deleted, run.inputs_deleted, run.inferences_deleted) == (2, 0, 0)
    [data, response, metadata] = [key.key for key in one.objects]
    objects = storing.objects()
    assert {data, metadata, "d1", "d2", "r"} <= objects
    assert response not in objects
    async with storing.engine.connect() as connection:
        gone = select(inference.c.uid).where(inference.c.response_deleted_at.is_not(None))
        assert set((await connection.execute(gone)).scalars()) == uids(one, shared)
        assert await connection.scalar(select(func.count()).select_from(prediction)) == 3
    assert await storing.stored() == uids(one, shared, young)
    assert (await retain()).responses_deleted == 0


async def test_the_newest_stay_within_a_limit(storing: Storing, retain: Retain) -> None:
    model, other = await storing.model(), await storing.model("other")
    made = await storing.inferences(model, 12, ago(days=3))
    newer = await storing.inferences(model, 5, ago(days=1))
    others = await storing.inferences(other, 3, ago(days=3))
    await put(storing, model, max_inferences=7)
    assert (await retain()).inferences_deleted == 10
    assert await storing.stored() == uids(*made[10:], *newer, *others)
    assert (await retain()).inferences_deleted == 0


async def test_a_limit_does_not_take_what_is_younger_than_the_minimum_age(
    storing: Storing, retain: Retain
) -> None:
    model = await storing.model()
    old = await storing.inferences(model, 4, ago(days=3))
    young = await storing.inferences(model, 4, ago(hours=2))
    await put(storing, model, rule("PT1H"), max_inferences=1, minimum_age="P1D")
    assert (await retain()).inferences_deleted == 4
    assert await storing.stored() == uids(*young)
    assert not uids(*old) & await storing.stored()


async def test_bytes_are_asked_of_the_bucket_and_the_oldest_go(
    storing: Storing, retain: Retain
) -> None:
    model = await storing.model()
    made = await storing.inferences(model, 10, ago(days=3))
    await put(storing, model, max_bytes=10**9)
    await retain()
    async with storing.engine.connect() as connection:

        async def sizes() -> list[int | None]:
            query = select(inference.c.stored_bytes).order_by(inference.c.uid)
            return list((await connection.execute(query)).scalars())

        found = await until_known(sizes)
    assert len(set(found)) == 1
    size = found[0]
    await put(storing, model, max_bytes=4 * size + size // 2)
    assert (await retain()).inferences_deleted == 6
    assert await storing.stored() == uids(*made[6:])


async def test_sizes_are_asked_for_while_a_limit_waits_to_begin(
    storing: Storing, retain: Retain
) -> None:
    """What it takes can be previewed before it takes it."""
    model = await storing.model()
    await storing.inferences(model, 3, ago(days=3))
    policy = RetentionPolicy.model_validate({"max_bytes": 1})
    async with storing.engine.begin() as connection:
        body = await policies.setting(connection, policies.DEFAULT, policy, grace_seconds=3600)
        await policies.apply_set(connection, body, await policies.now(connection), "me")
    assert (await retain()).inferences_deleted == 0
    async with storing.engine.connect() as connection:

        async def sizes() -> list[int | None]:
            return list((await connection.execute(select(inference.c.stored_bytes))).scalars())

        assert len(await until_known(sizes)) == 3


async def until_known(sizes: Callable[[], Awaitable[list[int | None]]]) -> list[int]:
    found = await until(sizes, lambda each: None not in each)
    return [size for size in found if size is not None]


async def test_the_projects_and_the_default_policy_are_carried_out(
    storing: Storing, retain: Retain
) -> None:
    model = await storing.model()
    made = await storing.inferences(model, 3, ago(days=2))
    kept = await storing.inferences(model, 3, ago(hours=2))
    policy = RetentionPolicy.model_validate({"rules": [rule("P1D")]})
    async with storing.engine.begin() as connection:
        body = await policies.setting(connection, policies.DEFAULT, policy, grace_seconds=3600)
        await policies.apply_set(connection, body, await policies.now(connection), "me")
    assert (await retain()).inferences_deleted == 0  # it waits to begin
    async with storing.engine.begin() as connection:
        body = await policies.setting(connection, policies.DEFAULT, policy)
        await policies.apply_set(connection, body, await policies.now(connection), "me")
    assert (await retain()).inferences_deleted == 3
    assert await storing.stored() == uids(*kept)
    assert made
