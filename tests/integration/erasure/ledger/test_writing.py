"""Each entry is written once, to the bucket before Postgres, and forgets in time what it said."""

import asyncio
import json
from itertools import pairwise
from typing import Any

import pytest
from minio.commonconfig import ENABLED
from minio.versioningconfig import VersioningConfig
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inference_store.access import Action, Who
from inference_store.erasure.ledger import Ledger
from inference_store.erasure.ledger_entries import Entry, Note
from inference_store.inference.errors import Conflict, LedgerDiverged, ObjectStoreUnavailable
from inference_store.inference.events import StorageKey
from inference_store.objects import Blobs
from tests.integration.backups import Backup, Restore
from tests.servers.minio import S3

from .conftest import PREFIX, list_words, make_ledger, read_head


def read_stored(blobs: Blobs, number: int) -> dict[str, Any]:
    key = StorageKey(blobs.buckets.default, f"{PREFIX}{number:010}")
    document: dict[str, Any] = json.loads(blobs.get(key, limit=100_000))
    return document


async def test_an_entry_is_in_the_bucket_and_has_its_effect(
    ledger: Ledger, engine: AsyncEngine, blobs: Blobs
) -> None:
    assert await ledger.write("word", {"word": "one"}, actor="key:a") == "key:a said one"
    note = Note(Action.POLICY_SET, "model", {"rules": []})
    who = Who("key:b", "10.0.0.1")
    await ledger.write("unrehearsed", {"word": "two"}, actor=who, note=note)
    first, second = read_stored(blobs, 1), read_stored(blobs, 2)
    assert (first["kind"], first["actor"], first["body"]) == ("word", "key:a", {"word": "one"})
    assert (first["previous"], second["previous"]) == ("", first["hash"])
    assert await list_words(engine) == {"one", "two"}
    assert await read_head(engine) == 2
    async with engine.connect() as connection:
        (audited,) = await connection.execute(text("SELECT * FROM audit"))
    assert (audited.actor, audited.client, audited.action) == ("key:b", "10.0.0.1", "policy_set")
    assert (audited.model_id, audited.detail) == ("model", {"rules": []})
    assert audited.at.isoformat() == second["at"]
    assert (await ledger.compare()).number == 2


async def test_does_not_write_refused_entries(ledger: Ledger, engine: AsyncEngine) -> None:
    async def refused(connection: AsyncConnection) -> dict[str, Any]:
        await connection.execute(text("INSERT INTO noted VALUES ('no')"))
        raise Conflict("It is not to be.")

    with pytest.raises(Conflict):
        await ledger.write("word", refused, actor="a")
    with pytest.raises(Exception, match="null value"):
        await ledger.write("word", {"word": None}, actor="a")
    assert await list_words(engine) == set()
    assert (await ledger.compare()).number == 0
    await ledger.write("word", {"word": "yes"}, actor="a")
    assert await read_head(engine) == 1


async def test_many_writers_have_a_number_each(
    ledger: Ledger, engine: AsyncEngine, blobs: Blobs
) -> None:
    others = [ledger, *(make_ledger(engine, blobs) for _ in range(3))]
    numbers = [f"{number}" for number in range(24)]
    answers = await asyncio.gather(
        *(
            others[int(word) % 4].write("word", {"word": word}, actor=f"writer {word}")
            for word in numbers
        )
    )
    assert answers == [f"writer {word} said {word}" for word in numbers]
    assert await list_words(engine) == set(numbers)
    entries = await asyncio.to_thread(ledger.entries.read_after, 0, 100)
    assert [entry.number for entry in entries] == list(range(1, 25))
    assert all(earlier.hash == following.previous for earlier, following in pairwise(entries))


class _Lost(Exception):
    """The process died here."""


async def test_an_entry_that_was_put_takes_effect_though_its_writer_died(
    ledger: Ledger, engine: AsyncEngine, blobs: Blobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def dies(*_: object) -> None:
        raise _Lost

    dying = make_ledger(engine, blobs)
    monkeypatch.setattr(dying, "_take_effect", dies)
    with pytest.raises(_Lost):
        await dying.write("word", {"word": "left"}, actor="a")
    assert await list_words(engine) == set()
    await ledger.write("word", {"word": "next"}, actor="b")
    assert await list_words(engine) == {"left", "next"}
    with pytest.raises(_Lost):
        await dying.write("word", {"word": "last"}, actor="a")
    assert (await ledger.compare()).number == 3
    assert await list_words(engine) == {"left", "next", "last"}


async def test_a_put_that_arrives_after_its_writer_died_wins_the_number_or_is_nothing(
    ledger: Ledger, engine: AsyncEngine, blobs: Blobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    late: list[Entry] = []

    def held_up(entry: Entry) -> bool:
        late.append(entry)
        raise ObjectStoreUnavailable("no answer")

    dying = make_ledger(engine, blobs)
    monkeypatch.setattr(dying, "_put", held_up)
    for word in ("wins", "loses"):
        with pytest.raises(ObjectStoreUnavailable):
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
    assert await list_words(engine) == {"wins", "other"}
    assert (await ledger.compare()).number == 2


async def test_an_entry_of_another_stops_the_writer(ledger: Ledger, engine: AsyncEngine) -> None:
    await ledger.write("word", {"word": "one"}, actor="a")
    foreign_entry = ledger.entries.get(1)
    assert foreign_entry is not None
    strange = Entry(
        2,
        "word",
        foreign_entry.at,
        "x",
        foreign_entry.hash,
        foreign_entry.body_hash,
        foreign_entry.content,
    )
    assert ledger.entries.put(strange)
    for _ in range(2):
        with pytest.raises(LedgerDiverged, match="goes on after entry 1"):
            await ledger.write("word", {"word": "two"}, actor="a")
    assert await list_words(engine) == {"one"}


async def test_redacts_every_version_of_an_entry(
    ledger: Ledger, blobs: Blobs, bucket: str, minio_server: S3, backup: Backup, restore: Restore
) -> None:
    minio_server.client().set_bucket_versioning(bucket, VersioningConfig(ENABLED))
    older = await restore(backup())
    for number in range(5):
        await ledger.write("word", {"word": f"secret {number}"}, actor="a")
    assert await ledger.redact(older_than_seconds=3600) == 0
    assert await ledger.redact(older_than_seconds=0, limit=3) == 3
    await ledger.write("word", {"word": "young"}, actor="a")
    entries = await asyncio.to_thread(ledger.entries.read_after, 0, 100)
    assert [entry.content is None for entry in entries] == [True] * 3 + [False] * 3
    assert (await ledger.compare()).number == 6

    again = make_ledger(older, blobs)
    with pytest.raises(LedgerDiverged, match=r"Entry 1 .* has forgotten what it said"):
        await again.replay()
    redacted: list[Entry] = []
    assert await again.replay(skip_forgotten=True, report=redacted.append) == 6
    assert [entry.number for entry in redacted if entry.content is None] == [1, 2, 3]
    assert await list_words(older) == {"secret 3", "secret 4", "young"}

    while await ledger.redact(older_than_seconds=0):
        continue
    contents = _list_contents(minio_server, bucket)
    assert len(contents) == 6
    assert not [blob for blob in contents if b"secret" in blob or b"young" in blob]
    assert (await ledger.compare()).number == 6


def _list_contents(server: S3, bucket: str) -> list[bytes]:
    """Every version of every object under the prefix."""
    client = server.client()
    contents = []
    for listed_object in client.list_objects(bucket, recursive=True, include_version=True):
        answer = client.get_object(
            bucket, str(listed_object.object_name), version_id=listed_object.version_id
        )
        contents.append(answer.read())
        answer.close()
    return contents
