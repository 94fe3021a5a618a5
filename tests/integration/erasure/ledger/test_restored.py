"""An older backup of Postgres is recognised, and gets what came since by a replay."""

from collections.abc import Awaitable, Callable
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import select, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inference_store.access import Action
from inference_store.erasure import holds, housekeeping, policies
from inference_store.erasure.certificates import restart_ledger
from inference_store.erasure.ledger import Ledger, LedgerWatch
from inference_store.erasure.ledger_entries import Entry, Note
from inference_store.erasure.policies import PolicyOwner, RetentionPolicy
from inference_store.index import registrations
from inference_store.index.registrations import Details
from inference_store.index.tables import audit, registration
from inference_store.inference.errors import LedgerDiverged
from inference_store.inference.events import StorageKey
from inference_store.objects import Blobs
from inference_store.query.cql2 import parse
from tests.integration.backups import Backup, Restore
from tests.integration.retention.stored import Storing, ago
from tests.transactions import execute, fetch, transact

from .conftest import PREFIX, list_words, make_ledger, read_head


async def test_a_restored_backup_refuses_until_it_was_replayed(
    ledger: Ledger, blobs: Blobs, backup: Backup, restore: Restore
) -> None:
    await ledger.write("word", {"word": "before"}, actor="a")
    older = await restore(backup())
    same = make_ledger(older, blobs)
    assert (await same.compare()).number == 1
    for number in range(3):
        note = Note(Action.POLICY_SET, "model", {"number": number})
        await ledger.write("word", {"word": f"since {number}"}, actor="a", note=note)
    watch = LedgerWatch(same)
    for ask in (watch.require, watch.compare, watch.compare_if_due):
        with pytest.raises(LedgerDiverged, match="ledger replay"):
            await ask()
    assert "goes on after entry 1" in str(await watch.reason())
    with pytest.raises(LedgerDiverged):
        await same.write("word", {"word": "too early"}, actor="a")
    replayed: list[Entry] = []
    assert await same.replay(report=replayed.append) == 3
    assert [entry.number for entry in replayed] == [2, 3, 4]
    assert await list_words(older) == {"before", "since 0", "since 1", "since 2"}
    await watch.compare_if_due()
    assert await watch.reason() is None
    assert await same.replay() == 0
    await same.write("word", {"word": "after"}, actor="a")
    # the audit has each once, as of when it was
    audited = await fetch(older, "SELECT at, detail FROM audit ORDER BY id")
    assert [row.detail["number"] for row in audited] == [0, 1, 2]
    assert [row.at for row in audited] == [entry.at for entry in replayed]
    # and the one that was left behind must not go on as if nothing were
    with pytest.raises(LedgerDiverged):
        await ledger.compare()


async def test_another_bucket_is_refused_until_the_ledger_begins_again_there(
    ledger: Ledger, engine: AsyncEngine, blobs: Blobs
) -> None:
    await ledger.write("word", {"word": "one"}, actor="a")
    moved = Ledger(engine, blobs, prefix="elsewhere/")
    with pytest.raises(LedgerDiverged, match="has no entry 1"):
        await moved.compare()
    with pytest.raises(LedgerDiverged, match="holds entry 1"):
        await restart_ledger(ledger, by="cli:me")
    assert (await restart_ledger(moved, by="cli:me")).number == 2
    assert (await moved.compare()).number == 2
    with pytest.raises(LedgerDiverged, match="has no entry 2"):
        await ledger.compare()


async def test_the_ledger_of_another_store_is_refused(
    ledger: Ledger, blobs: Blobs, backup: Backup, restore: Restore
) -> None:
    empty = await restore(backup())
    await ledger.write("word", {"word": "one"}, actor="a")
    kinds = list(make_ledger(empty, blobs)._kinds.values())
    other = Ledger(empty, blobs, prefix="other/", kinds=kinds)
    await other.write("word", {"word": "uno"}, actor="a")
    with pytest.raises(LedgerDiverged, match="another store"):
        await make_ledger(empty, blobs).compare()


async def test_an_entry_of_an_unknown_kind_or_that_was_changed_is_not_replayed(
    ledger: Ledger, blobs: Blobs, backup: Backup, restore: Restore
) -> None:
    older = await restore(backup())
    await ledger.write("word", {"word": "one"}, actor="a")
    with pytest.raises(LedgerDiverged, match="'word', which this version does not know"):
        await Ledger(older, blobs, prefix=PREFIX).replay()
    key = StorageKey(blobs.buckets.default, f"{PREFIX}0000000001")
    changed = blobs.get(key, limit=10_000).replace(b'"one"', b'"two"')
    blobs.put(key, changed, content_type="application/json")
    with pytest.raises(LedgerDiverged, match="was changed"):
        await make_ledger(older, blobs).replay()
    assert await list_words(older) == set()
    assert await read_head(older) == 0


async def _make_body(engine: AsyncEngine, **changes: Any) -> dict[str, Any]:
    hold_filter = await transact(engine, holds.build_filter, None, parse("ok"))
    body = {"id": str(uuid4()), "name": "one", "reason": "a file", "model_id": "new-model"}
    values = {"filter": hold_filter.text, "inference_ids": None, "until": None, "revision": 1}
    return body | values | changes


async def test_a_replay_places_changes_and_releases_them_again(
    ledger: Ledger, engine: AsyncEngine, blobs: Blobs, backup: Callable[[], bytes], restore: Restore
) -> None:
    """This includes a hold of a model that the backup does not know."""
    before = await _make_body(engine, name="before", model_id=None)
    await ledger.write("hold_placed", before, actor="a")
    older = await restore(backup())
    since, over = await _make_body(engine), await _make_body(engine, name="over")
    for body in (since, over):
        await ledger.write("hold_placed", body, actor="a")
    until = "2099-01-01T00:00:00+00:00"
    changed = since | {"revision": 2, "reason": "another", "until": until}
    await ledger.write("hold_changed", changed, actor="b")
    for body in (before, over):
        gone = {"id": body["id"], "reason": "closed", "revision": 2}
        await ledger.write("hold_released", gone, actor="c")
    there = await transact(engine, holds.list_holds)
    same = make_ledger(older, blobs)
    assert await same.replay() == 5
    again = await transact(older, holds.list_holds)
    in_force = await transact(older, holds.list_in_force)
    changes = await transact(older, holds.list_revisions, again[0].id)
    names = [
        *("id", "name", "reason", "filter", "until", "placed_by", "placed_at", "released_by"),
        *("released_at", "release_reason", "revision"),
    ]
    assert [[getattr(placed_hold, name) for name in names] for placed_hold in again] == [
        [getattr(placed_hold, name) for name in names] for placed_hold in there
    ]
    assert [hold.name for hold in in_force] == ["one"]
    assert len(changes) == 2


async def set_policy(ledger: Ledger, model_id: str) -> None:
    rule = {"keep_input": "P1D", "keep_inference": "P1D"}
    policy = RetentionPolicy.model_validate({"rules": [rule]})

    async def describe(connection: AsyncConnection) -> dict[str, object]:
        return await policies.describe_change(connection, PolicyOwner("model", model_id), policy)

    await ledger.write("policy_set", describe, actor="a")


async def test_a_replay_removes_empty_models_and_policies_of_full_ones(
    ledger: Ledger, engine: AsyncEngine, blobs: Blobs, backup: Backup, restore: Restore
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
    assert await fetch(engine, select(registration.c.model_id)) == []
    audited = await fetch(engine, select(audit.c.model, audit.c.model_id))
    assert [row.model_id for row in audited] == [*names, "later"]
    assert all(row.model for row in audited[:2])
    full = (await transact(older, registrations.get, "full")).model
    former = (await transact(older, registrations.get, "empty")).model
    (still,) = await Storing(older, blobs).inferences(full, 1, ago(days=1), objects=False)

    assert await make_ledger(older, blobs).replay() == 4
    async with older.begin() as connection:
        model_ids = (await connection.execute(select(registration.c.model_id))).scalars()
        assert list(model_ids) == ["full"]
        assert await policies.find_effective_policies(connection) == {}
        assert await registrations.ensure(connection, "empty") == former
    assert await Storing(older, blobs).stored() == {still.uid}


class Overtaken(Ledger):
    """Something happens between the entry of a model's removal and its effect."""

    meanwhile: Callable[[], Awaitable[object]]

    async def remove(self, model_id: str) -> None:
        async def describe(connection: AsyncConnection) -> dict[str, Any]:
            return dict(await housekeeping.describe_removal(connection, model_id))

        await self.write("model_removed", describe, actor="a")

    async def _take_effect(
        self, connection: AsyncConnection, entry: Entry, *, replayed: bool = False
    ) -> Any:
        if entry.kind == "model_removed":
            await self.meanwhile()
        return await super()._take_effect(connection, entry, replayed=replayed)


@pytest.mark.parametrize("put", [False, True])
async def test_data_arriving_before_the_effect_belongs_to_a_new_registration(
    engine: AsyncEngine, blobs: Blobs, put: bool
) -> None:
    storing = Storing(engine, blobs)
    ledger = Overtaken(engine, blobs, prefix="ledger/")
    registered, _ = await transact(
        engine, registrations.put, "m", Details(class_labels=("cat", "dog"))
    )
    await set_policy(ledger, "m")

    async def come() -> None:
        await storing.inferences(registered.model, 1, ago(days=1), objects=False)
        if put:
            await transact(engine, registrations.put, "m", Details(class_labels=("cow",)))

    ledger.meanwhile = come
    await ledger.remove("m")
    async with engine.begin() as connection:
        model = await registrations.get(connection, "m")
        expected_registration = ("api", ("cow",)) if put else ("event", ())
        assert (model.registered_by, model.class_labels) == expected_registration
        assert await policies.find_effective_policies(connection) == {}
        assert await housekeeping.remove_emptied(connection) == 0
    assert len(await storing.stored()) == 1


async def test_removes_a_model_with_its_last_inferences(
    ledger: Ledger, engine: AsyncEngine, blobs: Blobs
) -> None:
    storing = Storing(engine, blobs)
    for name in ("goes", "wanted"):
        await storing.inferences(await storing.model(name), 1, ago(days=1), objects=False)
    marks = "SELECT model, uid, 'inference', gen_random_uuid() FROM inference"
    await execute(engine, f"INSERT INTO erasing (model, uid, scope, erasure) {marks}")
    for name in ("goes", "wanted"):
        await ledger.write("model_removed", {"model_id": name}, actor="a")
    async with engine.begin() as connection:
        assert await housekeeping.remove_emptied(connection) == 0
        await registrations.put(connection, "wanted", Details(name="wanted again"))
        for table in ("erasing", "inference"):
            await connection.execute(text(f"DELETE FROM {table}"))
        assert await housekeeping.remove_emptied(connection) == 1
        model_ids = (await connection.execute(select(registration.c.model_id))).scalars().all()
    assert model_ids == ["wanted"]
