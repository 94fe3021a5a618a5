"""A model that was removed since an older backup was made is gone again after a replay."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from sqlalchemy import select, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inference_store.access import Action
from inference_store.erasure import policies
from inference_store.erasure.housekeeping import removed_models
from inference_store.erasure.ledger import Entry, Ledger, Note
from inference_store.erasure.policies import PolicyOwner, RetentionPolicy
from inference_store.index import registrations
from inference_store.index.registrations import Details
from inference_store.index.tables import audit, registration
from inference_store.objects import Blobs
from tests.integration.backups import Backup, Restore
from tests.integration.retention.stored import Storing, ago

from .conftest import make_ledger


async def set_policy(ledger: Ledger, model_id: str) -> None:
    rule = {"keep_input": "P1D", "keep_inference": "P1D"}
    policy = RetentionPolicy.model_validate({"rules": [rule]})

    async def describe(connection: AsyncConnection) -> dict[str, object]:
        return await policies.describe_change(connection, PolicyOwner("model", model_id), policy)

    await ledger.write("policy_set", describe, actor="a")


async def test_a_replay_removes_empty_models_and_policies_of_full_ones(
    ledger: Ledger, engine: AsyncEngine, blobs: Blobs, bucket: str, backup: Backup, restore: Restore
) -> None:
    names = ("empty", "full")
    async with engine.begin() as connection:
        for name in names:
            await registrations.put(connection, name, Details(project_id="p"))
    for name in names:
        await set_policy(ledger, name)
    older = await restore(backup())
    await set_policy(ledger, "later")
    for name in (*names, "later"):
        note = Note(Action.MODEL_REMOVED, name, {})
        await ledger.write("model_removed", {"model_id": name}, actor="a", note=note)
    async with engine.connect() as connection:
        assert (await connection.execute(select(registration.c.model_id))).all() == []
        audited = (await connection.execute(select(audit.c.model, audit.c.model_id))).all()
        assert [row.model_id for row in audited] == [*names, "later"]
        assert all(row.model for row in audited[:2])
    async with older.connect() as connection:
        full = (await registrations.get(connection, "full")).model
        former = (await registrations.get(connection, "empty")).model
    (still,) = await Storing(older, blobs, bucket).inferences(full, 1, ago(days=1), objects=False)

    assert await make_ledger(older, blobs).replay() == 4
    async with older.begin() as connection:
        model_ids = (await connection.execute(select(registration.c.model_id))).scalars()
        assert list(model_ids) == ["full"]
        assert await policies.find_effective_policies(connection) == {}
        assert await registrations.ensure(connection, "empty") == former
    assert await Storing(older, blobs, bucket).stored() == {still.uid}


class Overtaken(Ledger):
    """Something happens between the entry of a model's removal and its effect."""

    meanwhile: Callable[[], Awaitable[object]]

    async def remove(self, model_id: str) -> None:
        async def describe(connection: AsyncConnection) -> dict[str, Any]:
            return dict(await removed_models.describe_removal(connection, model_id))

        await self.write("model_removed", describe, actor="a")

    async def _take_effect(self, connection: AsyncConnection, entry: Entry) -> Any:
        if entry.kind == "model_removed":
            await self.meanwhile()
        return await super()._take_effect(connection, entry)


@pytest.mark.parametrize("put", [False, True])
async def test_data_arriving_before_the_effect_belongs_to_a_new_registration(
    engine: AsyncEngine, blobs: Blobs, bucket: str, put: bool
) -> None:
    storing = Storing(engine, blobs, bucket)
    ledger = Overtaken(engine, blobs, prefix="ledger/")
    async with engine.begin() as connection:
        registered, _ = await registrations.put(
            connection, "m", Details(class_labels=("cat", "dog"))
        )
    await set_policy(ledger, "m")

    async def come() -> None:
        await storing.inferences(registered.model, 1, ago(days=1), objects=False)
        if put:
            async with engine.begin() as connection:
                await registrations.put(connection, "m", Details(class_labels=("cow",)))

    ledger.meanwhile = come
    await ledger.remove("m")
    async with engine.begin() as connection:
        model = await registrations.get(connection, "m")
        expected_registration = ("api", ("cow",)) if put else ("event", ())
        assert (model.registered_by, model.class_labels) == expected_registration
        assert await policies.find_effective_policies(connection) == {}
        assert await removed_models.remove_emptied(connection) == 0
    assert len(await storing.stored()) == 1


async def test_removes_a_model_with_its_last_inferences(
    ledger: Ledger, engine: AsyncEngine, blobs: Blobs, bucket: str
) -> None:
    storing = Storing(engine, blobs, bucket)
    for name in ("goes", "wanted"):
        await storing.inferences(await storing.model(name), 1, ago(days=1), objects=False)
    async with engine.begin() as connection:
        marks = "SELECT model, uid, 'inference', gen_random_uuid() FROM inference"
        await connection.execute(text(f"INSERT INTO erasing (model, uid, scope, erasure) {marks}"))
    for name in ("goes", "wanted"):
        await ledger.write("model_removed", {"model_id": name}, actor="a")
    async with engine.begin() as connection:
        assert await removed_models.remove_emptied(connection) == 0
        await registrations.put(connection, "wanted", Details(name="wanted again"))
        for table in ("erasing", "inference"):
            await connection.execute(text(f"DELETE FROM {table}"))
        assert await removed_models.remove_emptied(connection) == 1
        model_ids = (await connection.execute(select(registration.c.model_id))).scalars().all()
    assert model_ids == ["wanted"]
