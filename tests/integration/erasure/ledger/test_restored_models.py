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
from inference_store.erasure.policies import Of, RetentionPolicy
from inference_store.index import registrations
from inference_store.index.registrations import Details
from inference_store.index.tables import audit, registration
from inference_store.objects import Blobs
from tests.integration.backups import Backup, Restore
from tests.integration.retention.stored import Storing, ago

from .conftest import ledger_of


async def keep(ledger: Ledger, model_id: str) -> None:
    rule = {"keep_input": "P1D", "keep_inference": "P1D"}
    policy = RetentionPolicy.model_validate({"rules": [rule]})

    async def said(connection: AsyncConnection) -> dict[str, object]:
        return await policies.setting(connection, Of("model", model_id), policy)

    await ledger.write("policy_set", said, actor="a")


async def test_it_is_gone_with_its_policy_and_what_has_inferences_is_only_without_one(
    ledger: Ledger,
    engine: AsyncEngine,
    blobs: Blobs,
    bucket: str,
    backup: Backup,
    restore: Restore,
) -> None:
    names = ("empty", "full")
    async with engine.begin() as connection:
        for name in names:
            await registrations.put(connection, name, Details(project_id="p"))
    for name in names:
        await keep(ledger, name)
    older = await restore(backup())
    await keep(ledger, "later")
    for name in (*names, "later"):
        note = Note(Action.MODEL_REMOVED, name, {})
        await ledger.write("model_removed", {"model_id": name}, actor="a", note=note)
    async with engine.connect() as connection:
        assert (await connection.execute(select(registration.c.model_id))).all() == []
        audited = (await connection.execute(select(audit.c.model, audit.c.model_id))).all()
        assert [each.model_id for each in audited] == [*names, "later"]
        assert all(each.model for each in audited[:2])
    async with older.connect() as connection:
        full = (await registrations.get(connection, "full")).model
        former = (await registrations.get(connection, "empty")).model
    (still,) = await Storing(older, blobs, bucket).inferences(full, 1, ago(days=1), objects=False)

    assert await ledger_of(older, blobs).replay() == 4
    async with older.begin() as connection:
        found = (await connection.execute(select(registration.c.model_id))).scalars()
        assert list(found) == ["full"]
        assert await policies.by_model(connection) == {}
        assert await registrations.ensure(connection, "empty") == former
    assert await Storing(older, blobs, bucket).stored() == {still.uid}


class Overtaken(Ledger):
    """Something happens between the entry of a model's removal and its effect."""

    meanwhile: Callable[[], Awaitable[object]]

    async def remove(self, model_id: str) -> None:
        async def said(connection: AsyncConnection) -> dict[str, Any]:
            return dict(await removed_models.removable(connection, model_id))

        await self.write("model_removed", said, actor="a")

    async def _take_effect(self, connection: AsyncConnection, entry: Entry) -> Any:
        if entry.kind == "model_removed":
            await self.meanwhile()
        return await super()._take_effect(connection, entry)


@pytest.mark.parametrize("put", [False, True])
async def test_what_comes_between_the_entry_and_its_effect_is_of_a_model_registered_anew(
    engine: AsyncEngine, blobs: Blobs, bucket: str, put: bool
) -> None:
    storing = Storing(engine, blobs, bucket)
    ledger = Overtaken(engine, blobs, prefix="ledger/")
    async with engine.begin() as connection:
        made, _ = await registrations.put(connection, "m", Details(class_labels=("cat", "dog")))
    await keep(ledger, "m")

    async def come() -> None:
        await storing.inferences(made.model, 1, ago(days=1), objects=False)
        if put:
            async with engine.begin() as connection:
                await registrations.put(connection, "m", Details(class_labels=("cow",)))

    ledger.meanwhile = come
    await ledger.remove("m")
    async with engine.begin() as connection:
        found = await registrations.get(connection, "m")
        anew = ("api", ("cow",)) if put else ("event", ())
        assert (found.registered_by, found.class_labels) == anew
        assert await policies.by_model(connection) == {}
        assert await removed_models.remove_emptied(connection) == 0
    assert len(await storing.stored()) == 1


async def test_a_model_whose_last_inferences_are_being_erased_goes_with_them(
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
        left = (await connection.execute(select(registration.c.model_id))).scalars().all()
    assert left == ["wanted"]
