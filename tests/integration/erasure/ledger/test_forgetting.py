"""Entries forget what they said, the chain holds, and a replay says what it can no longer do."""

import asyncio

import pytest
from minio.commonconfig import ENABLED
from minio.versioningconfig import VersioningConfig
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.erasure.ledger import Entry, Ledger
from inference_store.inference.errors import LedgerApart
from inference_store.objects import Blobs
from tests.integration.backups import Backup, Restore
from tests.servers.minio import S3

from .conftest import ledger_of, words


async def test_what_was_said_is_forgotten_in_every_version(
    ledger: Ledger, blobs: Blobs, bucket: str, minio_server: S3, backup: Backup, restore: Restore
) -> None:
    minio_server.client().set_bucket_versioning(bucket, VersioningConfig(ENABLED))
    older = await restore(backup())
    for number in range(5):
        await ledger.write("word", {"word": f"secret {number}"}, actor="a")
    assert await ledger.forget(older_than_seconds=3600) == 0
    assert await ledger.forget(older_than_seconds=0, limit=3) == 3
    await ledger.write("word", {"word": "young"}, actor="a")
    found = await asyncio.to_thread(ledger.entries.listed, 0, 100)
    assert [entry.said is None for entry in found] == [True] * 3 + [False] * 3
    assert (await ledger.look()).head.number == 6

    again = ledger_of(older, blobs)
    with pytest.raises(LedgerApart, match=r"Entry 1 .* has forgotten what it said"):
        await again.replay()
    said: list[Entry] = []
    assert await again.replay(skip_forgotten=True, say=said.append) == 6
    assert [entry.number for entry in said if entry.said is None] == [1, 2, 3]
    assert await words(older) == {"secret 3", "secret 4", "young"}

    while await ledger.forget(older_than_seconds=0):
        continue
    contents = _contents(minio_server, bucket)
    assert len(contents) == 6
    assert not [blob for blob in contents if b"secret" in blob or b"young" in blob]
    assert (await ledger.look()).head.number == 6


async def test_forgetting_goes_on_where_it_was(ledger: Ledger, engine: AsyncEngine) -> None:
    for number in range(4):
        await ledger.write("word", {"word": f"{number}"}, actor="a")
    assert await ledger.forget(older_than_seconds=0, limit=2) == 2
    async with engine.begin() as connection:
        assert await connection.scalar(text("SELECT forgotten FROM ledger_head")) == 2
        # a restored backup knows less: it looks at them once more
        await connection.execute(text("UPDATE ledger_head SET forgotten = 0"))
    assert await ledger.forget(older_than_seconds=0, limit=100) == 4
    assert await ledger.forget(older_than_seconds=0, limit=100) == 0


def _contents(server: S3, bucket: str) -> list[bytes]:
    """Every version of every object under the prefix."""
    client = server.client()
    found = []
    for each in client.list_objects(bucket, recursive=True, include_version=True):
        answer = client.get_object(bucket, str(each.object_name), version_id=each.version_id)
        found.append(answer.read())
        answer.close()
    return found
