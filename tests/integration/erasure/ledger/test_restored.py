"""An older backup of Postgres is recognised, and gets what came since by a replay."""

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.access import Action
from inference_store.erasure.ledger import Entry, Ledger, LedgerWatch, Note
from inference_store.inference.errors import LedgerDiverged
from inference_store.inference.events import StorageKey
from inference_store.objects import Blobs
from tests.integration.backups import Backup, Restore

from .conftest import PREFIX, list_words, make_ledger, read_head


async def test_a_restored_backup_refuses_until_it_was_replayed(
    ledger: Ledger,
    blobs: Blobs,
    backup: Backup,
    restore: Restore,
) -> None:
    await ledger.write("word", {"word": "before"}, actor="a")
    older = await restore(backup())
    same = make_ledger(older, blobs)
    assert (await same.compare()).head.number == 1
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
    async with older.connect() as connection:
        audited = (await connection.execute(text("SELECT at, detail FROM audit ORDER BY id"))).all()
    assert [row.detail["number"] for row in audited] == [0, 1, 2]
    assert [row.at for row in audited] == [entry.at for entry in replayed]
    # and the one that was left behind must not go on as if nothing were
    with pytest.raises(LedgerDiverged):
        await ledger.compare()


async def test_an_empty_database_is_accepted_only_with_an_empty_bucket(
    ledger: Ledger, engine: AsyncEngine
) -> None:
    assert (await ledger.compare()).head.number == 0
    await ledger.write("word", {"word": "one"}, actor="a")
    async with engine.begin() as connection:
        await connection.execute(text("UPDATE ledger_head SET number = 0, hash = ''"))
        await connection.execute(text("DELETE FROM noted"))
    with pytest.raises(LedgerDiverged, match="replay"):
        await ledger.compare()
    assert await ledger.replay() == 1
    assert await list_words(engine) == {"one"}


async def test_another_bucket_is_refused_until_the_ledger_begins_again_there(
    ledger: Ledger, engine: AsyncEngine, blobs: Blobs
) -> None:
    await ledger.write("word", {"word": "one"}, actor="a")
    moved = Ledger(engine, blobs, prefix="elsewhere/")
    with pytest.raises(LedgerDiverged, match="has no entry 1"):
        await moved.compare()
    with pytest.raises(LedgerDiverged, match="holds entry 1"):
        await ledger.restart(actor="cli:me")
    assert (await moved.restart(actor="cli:me")).number == 2
    assert (await moved.compare()).head.number == 2
    with pytest.raises(LedgerDiverged, match="has no entry 2"):
        await ledger.compare()


async def test_an_old_backup_learns_what_it_lacks_of_a_ledger_that_began_again(
    ledger: Ledger, blobs: Blobs, backup: Backup, restore: Restore
) -> None:
    older = await restore(backup())
    await ledger.write("word", {"word": "one"}, actor="a")
    moved = Ledger(ledger._engine, blobs, prefix="elsewhere/")
    await moved.restart(actor="cli:me")
    again = Ledger(older, blobs, prefix="elsewhere/")
    with pytest.raises(LedgerDiverged, match="has entry 2 of the ledger, and not 1"):
        await again.replay()


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


async def test_an_entry_that_was_changed_is_not_replayed(
    ledger: Ledger, blobs: Blobs, backup: Backup, restore: Restore
) -> None:
    older = await restore(backup())
    await ledger.write("word", {"word": "one"}, actor="a")
    key = StorageKey(blobs.buckets.default, f"{PREFIX}0000000001")
    changed = blobs.get(key, limit=10_000).replace(b'"one"', b'"two"')
    blobs.put(key, changed, content_type="application/json")
    with pytest.raises(LedgerDiverged, match="was changed"):
        await make_ledger(older, blobs).replay()
    assert await list_words(older) == set()
    assert await read_head(older) == 0


async def test_reports_an_unknown_kind(
    ledger: Ledger, blobs: Blobs, backup: Backup, restore: Restore
) -> None:
    older = await restore(backup())
    await ledger.write("word", {"word": "one"}, actor="a")
    with pytest.raises(LedgerDiverged, match="'word', which this version does not know"):
        await Ledger(older, blobs, prefix=PREFIX).replay()
