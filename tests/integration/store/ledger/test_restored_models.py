"""A model that was removed since an older backup was made is gone again after a replay."""

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inference_store.store import registrations
from inference_store.store.access import Action
from inference_store.store.blobs import Blobs
from inference_store.store.ledger import Ledger, Note
from inference_store.store.registrations import Details
from inference_store.store.retention import policies
from inference_store.store.retention.policies import Of, RetentionPolicy
from inference_store.store.tables import audit, registration
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
