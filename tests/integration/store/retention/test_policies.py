import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.store.errors import PreconditionFailed
from inference_store.store.retention import policies
from inference_store.store.retention.policies import RetentionPolicy


def policy(keep: str) -> RetentionPolicy:
    rule = {"keep_input": keep, "keep_inference": keep}
    return RetentionPolicy.model_validate({"rules": [rule]})


async def test_a_policy_is_set_changed_and_removed(engine: AsyncEngine) -> None:
    async with engine.begin() as connection:
        assert await policies.get(connection, 1) is None
        made = await policies.put(connection, 1, policy("P1D"))
        assert (made.revision, made.policy) == (1, policy("P1D"))
        changed = await policies.put(connection, 1, policy("P2D"))
        assert changed.revision == 2
        assert await policies.get(connection, 1) == changed
        await policies.put(connection, 2, policy("P3D"))
        assert await policies.by_model(connection) == {1: policy("P2D"), 2: policy("P3D")}
        assert await policies.by_model(connection, {2, 3}) == {2: policy("P3D")}
        assert await policies.delete(connection, 1)
        assert not await policies.delete(connection, 1)


async def test_a_revision_that_is_no_more_is_refused(engine: AsyncEngine) -> None:
    async with engine.begin() as connection:
        await policies.put(connection, 1, policy("P1D"), revision=0)
        await policies.put(connection, 1, policy("P2D"), revision=1)
        for revision in (0, 1, 3):
            with pytest.raises(PreconditionFailed):
                await policies.put(connection, 1, policy("P3D"), revision=revision)
        with pytest.raises(PreconditionFailed):
            await policies.delete(connection, 1, revision=1)
        assert await policies.delete(connection, 1, revision=2)
