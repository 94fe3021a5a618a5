"""Policies as they are kept: versions, what is in force, what waits."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inference_store.erasure import policies
from inference_store.erasure.housekeeping import removed_models
from inference_store.erasure.policies import DEFAULT, PolicyOwner, RetentionPolicy
from inference_store.index import registrations
from inference_store.index.registrations import Details
from inference_store.inference.errors import NotFound, PreconditionFailed

MODEL, PROJECT = PolicyOwner("model", "m"), PolicyOwner("project", "p")
_LATER = 3600.0


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


async def find_in_force(connection: AsyncConnection, of: PolicyOwner) -> RetentionPolicy | None:
    version = (await policies.find_state(connection, of)).in_force
    return None if version is None else version.policy


async def test_a_policy_is_set_changed_and_removed(engine: AsyncEngine) -> None:
    async with engine.begin() as connection:
        assert await find_in_force(connection, MODEL) is None
        assert await put(connection, MODEL, make_policy("P1D")) == 1
        assert await put(connection, MODEL, make_policy("P2D"), reason="why") == 2
        assert await put(connection, PROJECT, make_policy("P3D")) == 1
        assert await find_in_force(connection, MODEL) == make_policy("P2D")
        assert await put(connection, MODEL, None) == 3
        assert await find_in_force(connection, MODEL) is None
        with pytest.raises(NotFound):
            await put(connection, MODEL, None)
        versions = await policies.list_versions(connection, MODEL)
        assert [(version.revision, version.policy, version.reason) for version in versions] == [
            (3, None, None),
            (2, make_policy("P2D"), "why"),
            (1, make_policy("P1D"), None),
        ]
        assert [e.revision for e in await policies.list_versions(connection, MODEL, before=3)] == [
            2,
            1,
        ]


async def test_rejects_an_outdated_revision(engine: AsyncEngine) -> None:
    async with engine.begin() as connection:
        await put(connection, MODEL, make_policy("P1D"), expected=0)
        await put(connection, MODEL, make_policy("P2D"), expected=1)
        for revision in (0, 1, 3):
            with pytest.raises(PreconditionFailed, match=f"revision 2, not {revision}"):
                await put(connection, MODEL, make_policy("P3D"), expected=revision)
        await put(connection, MODEL, None, expected=2)


async def test_a_waiting_policy_begins_later_unless_revoked_or_replaced(
    engine: AsyncEngine,
) -> None:
    async with engine.begin() as connection:
        await put(connection, MODEL, make_policy("P9D"))
        await put(connection, MODEL, make_policy("P1D"), grace_seconds=_LATER)
        standing = await policies.find_state(connection, MODEL)
        assert standing.pending is not None
        assert (standing.revision, standing.pending.revision) == (2, 2)
        assert await find_in_force(connection, MODEL) == make_policy("P9D")
        await put(connection, MODEL, make_policy("P2D"), grace_seconds=_LATER)
        first, *_ = await policies.list_versions(connection, MODEL, before=3)
        assert first.revoked_at is not None
        body = await policies.describe_revocation(connection, MODEL, expected=3)
        for _ in range(2):
            await policies.apply_revoked(connection, body, datetime.now(UTC), "other")
        with pytest.raises(NotFound, match="waits to begin"):
            await policies.describe_revocation(connection, MODEL)
        newest, *_ = await policies.list_versions(connection, MODEL)
        assert (newest.revision, newest.revoked_by) == (3, "other")
        assert await find_in_force(connection, MODEL) == make_policy("P9D")


async def test_a_policy_already_in_force_begins_at_once(engine: AsyncEngine) -> None:
    async with engine.begin() as connection:
        await put(connection, MODEL, make_policy("P9D"))
        await put(connection, MODEL, make_policy("P1D"), grace_seconds=_LATER)
        await put(connection, MODEL, make_policy("P9D"), grace_seconds=_LATER)
        standing = await policies.find_state(connection, MODEL)
        assert standing.pending is None
        assert standing.in_force is not None
        assert (standing.in_force.revision, standing.in_force.policy) == (3, make_policy("P9D"))


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


async def test_a_model_that_is_removed_takes_its_policy_with_it(engine: AsyncEngine) -> None:
    async with engine.begin() as connection:
        for _ in range(2):
            registered, _ = await registrations.put(connection, "m", Details())
            assert await policies.find_effective_policies(connection) == {}
            await policies.set_policy(connection, registered.model, make_policy("P1D"))
            assert len(await policies.find_effective_policies(connection)) == 1
            await removed_models.describe_removal(connection, "m")
            await removed_models.apply_removed(
                connection, {"model_id": "m"}, datetime.now(UTC), "a"
            )
