"""What is written is in the bucket before it is in Postgres, whoever else writes, and once."""

import asyncio
import json
from itertools import pairwise
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inference_store.access import Action, Who
from inference_store.erasure.ledger import Ledger, Note
from inference_store.erasure.ledger.entry import Entry
from inference_store.inference.errors import BlobsAway, Conflict, LedgerApart
from inference_store.inference.events import StorageKey
from inference_store.objects import Blobs

from .conftest import PREFIX, head, ledger_of, words


def stored(blobs: Blobs, number: int) -> dict[str, Any]:
    key = StorageKey(blobs.buckets.default, f"{PREFIX}{number:010}")
    found: dict[str, Any] = json.loads(blobs.get(key, limit=100_000))
    return found


async def test_an_entry_is_in_the_bucket_and_has_its_effect(
    ledger: Ledger, engine: AsyncEngine, blobs: Blobs
) -> None:
    assert await ledger.write("word", {"word": "one"}, actor="key:a") == "key:a said one"
    note = Note(Action.POLICY_SET, "model", {"rules": []})
    who = Who("key:b", "10.0.0.1")
    await ledger.write("unrehearsed", {"word": "two"}, actor=who, note=note)
    first, second = stored(blobs, 1), stored(blobs, 2)
    assert (first["kind"], first["actor"], first["body"]) == ("word", "key:a", {"word": "one"})
    assert (first["previous"], second["previous"]) == ("", first["hash"])
    assert await words(engine) == {"one", "two"}
    assert await head(engine) == 2
    async with engine.connect() as connection:
        (audited,) = await connection.execute(text("SELECT * FROM audit"))
    assert (audited.actor, audited.client, audited.action) == ("key:b", "10.0.0.1", "policy_set")
    assert (audited.model_id, audited.detail) == ("model", {"rules": []})
    assert audited.at.isoformat() == second["at"]
    assert (await ledger.look()).beyond is None


async def test_what_is_refused_is_not_written(ledger: Ledger, engine: AsyncEngine) -> None:
    async def refused(connection: AsyncConnection) -> dict[str, Any]:
        await connection.execute(text("INSERT INTO noted VALUES ('no')"))
        raise Conflict("It is not to be.")

    with pytest.raises(Conflict):
        await ledger.write("word", refused, actor="a")
    with pytest.raises(Exception, match="null value"):
        await ledger.write("word", {"word": None}, actor="a")
    assert await words(engine) == set()
    assert (await ledger.look()).head.number == 0
    await ledger.write("word", {"word": "yes"}, actor="a")
    assert await head(engine) == 1


async def test_many_writers_have_a_number_each(
    ledger: Ledger, engine: AsyncEngine, blobs: Blobs
) -> None:
    others = [ledger, *(ledger_of(engine, blobs) for _ in range(3))]
    said = [f"{number}" for number in range(24)]
    answers = await asyncio.gather(
        *(
            others[int(word) % 4].write("word", {"word": word}, actor=f"writer {word}")
            for word in said
        )
    )
    assert answers == [f"writer {word} said {word}" for word in said]
    assert await words(engine) == set(said)
    found = await asyncio.to_thread(ledger.entries.listed, 0, 100)
    assert [entry.number for entry in found] == list(range(1, 25))
    assert all(one.hash == two.previous for one, two in pairwise(found))


class _Lost(Exception):
    """The process died here."""


async def test_an_entry_that_was_put_takes_effect_though_its_writer_died(
    ledger: Ledger, engine: AsyncEngine, blobs: Blobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def dies(*_: object) -> None:
        raise _Lost

    dying = ledger_of(engine, blobs)
    monkeypatch.setattr(dying, "_take_effect", dies)
    with pytest.raises(_Lost):
        await dying.write("word", {"word": "left"}, actor="a")
    assert await words(engine) == set()
    await ledger.write("word", {"word": "next"}, actor="b")
    assert await words(engine) == {"left", "next"}
    with pytest.raises(_Lost):
        await dying.write("word", {"word": "last"}, actor="a")
    assert (await ledger.look()).head.number == 3
    assert await words(engine) == {"left", "next", "last"}


async def test_a_put_that_arrives_after_its_writer_died_wins_the_number_or_is_nothing(
    ledger: Ledger, engine: AsyncEngine, blobs: Blobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    late: list[Entry] = []

    def held_up(entry: Entry) -> bool:
        late.append(entry)
        raise BlobsAway("no answer")

    dying = ledger_of(engine, blobs)
    monkeypatch.setattr(dying, "_put", held_up)
    for word in ("wins", "loses"):
        with pytest.raises(BlobsAway):
            await dying.write("word", {"word": word}, actor="a")
    # Both were meant to be number 1; the first arrives while another is about to write.
    put = ledger._put

    def after_the_late_one(entry: Entry) -> bool:
        monkeypatch.setattr(ledger, "_put", put)
        assert ledger.entries.put(late[0])
        return put(entry)

    monkeypatch.setattr(ledger, "_put", after_the_late_one)
    await ledger.write("word", {"word": "other"}, actor="b")
    assert not ledger.entries.put(late[1])
    assert await words(engine) == {"wins", "other"}
    assert (await ledger.look()).head.number == 2


async def test_an_entry_of_nobody_here_stops_the_writer(
    ledger: Ledger, engine: AsyncEngine
) -> None:
    await ledger.write("word", {"word": "one"}, actor="a")
    one = ledger.entries.get(1)
    assert one is not None
    strange = Entry(2, "word", one.at, "x", one.hash, one.body_hash, one.said)
    assert ledger.entries.put(strange)
    for _ in range(2):
        with pytest.raises(LedgerApart, match="goes on after entry 1"):
            await ledger.write("word", {"word": "two"}, actor="a")
    assert await words(engine) == {"one"}
