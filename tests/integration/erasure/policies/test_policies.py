"""Policies as they are kept: versions, what is in force, what waits."""

from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inference_store.erasure import policies
from inference_store.erasure.policies import DEFAULT, PolicyOwner, RetentionPolicy
from inference_store.index import registrations
from inference_store.index.registrations import Details

MODEL, PROJECT = PolicyOwner("model", "m"), PolicyOwner("project", "p")


def make_policy(keep: str, **more: Any) -> RetentionPolicy:
    rule = {"keep_input": keep, "keep_inference": keep}
    return RetentionPolicy.model_validate({"rules": [rule], **more})


async def put(
    connection: AsyncConnection, of: PolicyOwner, new_policy: RetentionPolicy | None, **more: Any
) -> int:
    body = await policies.describe_change(connection, of, new_policy, **more)
    await policies.apply_set(connection, body, datetime.now(UTC), "me")
    await policies.apply_set(connection, body, datetime.now(UTC), "me")  # a replay
    return int(body["revision"])


async def test_the_policies_of_a_model_its_project_and_all_apply(engine: AsyncEngine) -> None:
    now = datetime.now(UTC)
    async with engine.begin() as connection:
        numbers = []
        for name, project in (("m", "p"), ("n", "p"), ("o", None)):
            registered, _ = await registrations.put(connection, name, Details(project_id=project))
            numbers.append(registered.model)
        assert await policies.find_effective_policies(connection) == {}
        await put(connection, MODEL, make_policy("P1D"))
        await put(connection, PROJECT, make_policy("P2D"))
        policies_by_model = await policies.find_effective_policies(connection)
        assert {model: chain.find_end(now) for model, chain in policies_by_model.items()} == {
            numbers[0]: now - timedelta(days=1),
            numbers[1]: now - timedelta(days=2),
        }
        await put(connection, DEFAULT, make_policy("P3D"))
        policies_by_model = await policies.find_effective_policies(connection, numbers[1:])
        assert [chain.rules[0].of for _, chain in sorted(policies_by_model.items())] == [
            PROJECT,
            DEFAULT,
        ]


async def test_an_unreadable_policy_deletes_nothing(engine: AsyncEngine) -> None:
    async with engine.begin() as connection:
        registered, _ = await registrations.put(connection, "m", Details())
        await put(connection, DEFAULT, make_policy("P1D"))
        broken = RetentionPolicy.model_validate(
            {"rules": [{"keep_input": "P1D", "keep_inference": "P1D", "saved": '{"version": 99}'}]}
        )
        await put(connection, MODEL, broken)
        assert await policies.find_effective_policies(connection) == {}
        await put(connection, MODEL, None)
        assert list(await policies.find_effective_policies(connection)) == [registered.model]
