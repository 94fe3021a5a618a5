"""An older backup of Postgres is told apart, and gets what came since by a replay."""

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.access import Action
from inference_store.erasure.ledger import Entry, Ledger, LedgerWatch, Note
from inference_store.inference.errors import LedgerApart
from inference_store.inference.events import StorageKey
from inference_store.objects import Blobs
from tests.integration.backups import Backup, Restore

from .conftest import PREFIX, head, ledger_of, words


async def test_a_restored_backup_refuses_until_it_was_replayed(
    ledger: Ledger,
    blobs: Blobs,
    backup: Backup,
    restore: Restore,
) -> None:
    await ledger.write("word", {"word": "before"}, actor="a")
    older = await restore(backup())
    same = ledger_of(older, blobs)
    assert (await same.look()).head.number == 1
    for number in range(3):
        note = Note(Action.POLICY_SET, "model", {"number": number})
        await ledger.write("word", {"word": f"since {number}"}, actor="a", note=note)
    watch = LedgerWatch(same)
    for ask in (watch.require, watch.look, watch.if_due):
        with pytest.raises(LedgerApart, match="ledger replay"):
            await ask()
    assert "goes on after entry 1" in str(await watch.reason())
    with pytest.raises(LedgerApart):
        await same.write("word", {"word": "too early"}, actor="a")
    said: list[Entry] = []
    assert await same.replay(say=said.append) == 3
    assert [entry.number for entry in said] == [2, 3, 4]
    assert await words(older) == {"before", "since 0", "since 1", "since 2"}
    await watch.if_due()
    assert await watch.reason() is None
    assert await same.replay() == 0
    await same.write("word", {"word": "after"}, actor="a")
    # the audit has each once, as of when it was
    async with older.connect() as connection:
        audited = (await connection.execute(text("SELECT at, detail FROM audit ORDER BY id"))).all()
    assert [row.detail["number"] for row in audited] == [0, 1, 2]
    assert [row.at for row in audited] == [entry.at for entry in said]
    # and the one that was left behind must not go on as if nothing were
    with pytest.raises(LedgerApart):
        await ledger.look()


async def test_an_empty_database_is_no_older_backup_only_where_the_bucket_is_empty(
    ledger: Ledger, engine: AsyncEngine
) -> None:
    assert (await ledger.look()).head.number == 0
    await ledger.write("word", {"word": "one"}, actor="a")
    async with engine.begin() as connection:
        await connection.execute(text("UPDATE ledger_head SET number = 0, hash = ''"))
        await connection.execute(text("DELETE FROM noted"))
    with pytest.raises(LedgerApart, match="replay"):
        await ledger.look()
    assert await ledger.replay() == 1
    assert await words(engine) == {"one"}


async def test_another_bucket_is_refused_until_the_ledger_begins_anew_there(
    ledger: Ledger, engine: AsyncEngine, blobs: Blobs
) -> None:
    await ledger.write("word", {"word": "one"}, actor="a")
    moved = Ledger(engine, blobs, prefix="elsewhere/")
    with pytest.raises(LedgerApart, match="has no entry 1"):
        await moved.look()
    with pytest.raises(LedgerApart, match="holds entry 1"):
        await ledger.begin_anew(actor="cli:me")
    assert (await moved.begin_anew(actor="cli:me")).number == 2
    assert (await moved.look()).head.number == 2
    with pytest.raises(LedgerApart, match="has no entry 2"):
        await ledger.look()


async def test_a_backup_of_before_a_ledger_began_anew_is_told_what_it_lacks(
    ledger: Ledger, blobs: Blobs, backup: Backup, restore: Restore
) -> None:
    older = await restore(backup())
    await ledger.write("word", {"word": "one"}, actor="a")
    moved = Ledger(ledger._engine, blobs, prefix="elsewhere/")
    await moved.begin_anew(actor="cli:me")
    again = Ledger(older, blobs, prefix="elsewhere/")
    with pytest.raises(LedgerApart, match="has entry 2 of the ledger, and not 1"):
        await again.replay()


async def test_the_ledger_of_another_store_is_refused(
    ledger: Ledger, blobs: Blobs, backup: Backup, restore: Restore
) -> None:
    empty = await restore(backup())
    await ledger.write("word", {"word": "one"}, actor="a")
    kinds = list(ledger_of(empty, blobs)._kinds.values())
    other = Ledger(empty, blobs, prefix="other/", kinds=kinds)
    await other.write("word", {"word": "uno"}, actor="a")
    with pytest.raises(LedgerApart, match="another store"):
        await ledger_of(empty, blobs).look()


async def test_an_entry_that_was_changed_is_not_replayed(
    ledger: Ledger, blobs: Blobs, backup: Backup, restore: Restore
) -> None:
    older = await restore(backup())
    await ledger.write("word", {"word": "one"}, actor="a")
    key = StorageKey(blobs.buckets.default, f"{PREFIX}0000000001")
    changed = blobs.get(key, limit=10_000).replace(b'"one"', b'"two"')
    blobs.put(key, changed, content_type="application/json")
    with pytest.raises(LedgerApart, match="was changed"):
        await ledger_of(older, blobs).replay()
    assert await words(older) == set()
    assert await head(older) == 0


async def test_a_kind_that_this_version_does_not_know_is_said(
    ledger: Ledger, blobs: Blobs, backup: Backup, restore: Restore
) -> None:
    older = await restore(backup())
    await ledger.write("word", {"word": "one"}, actor="a")
    with pytest.raises(LedgerApart, match="'word', which this version does not know"):
        await Ledger(older, blobs, prefix=PREFIX).replay()
