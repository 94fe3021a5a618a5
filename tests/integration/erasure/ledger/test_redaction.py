"""Entries forget what they said, the chain holds, and a replay says what it can no longer do."""

import asyncio

import pytest
from minio.commonconfig import ENABLED
from minio.versioningconfig import VersioningConfig
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.erasure.ledger import Entry, Ledger
from inference_store.inference.errors import LedgerDiverged
from inference_store.objects import Blobs
from tests.integration.backups import Backup, Restore
from tests.servers.minio import S3

from .conftest import list_words, make_ledger


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
    assert (await ledger.compare()).head.number == 6

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
    assert (await ledger.compare()).head.number == 6


async def test_redaction_resumes_where_it_stopped(ledger: Ledger, engine: AsyncEngine) -> None:
    for number in range(4):
        await ledger.write("word", {"word": f"{number}"}, actor="a")
    assert await ledger.redact(older_than_seconds=0, limit=2) == 2
    async with engine.begin() as connection:
        assert await connection.scalar(text("SELECT forgotten FROM ledger_head")) == 2
        # a restored backup knows less: it looks at them once more
        await connection.execute(text("UPDATE ledger_head SET forgotten = 0"))
    assert await ledger.redact(older_than_seconds=0, limit=100) == 4
    assert await ledger.redact(older_than_seconds=0, limit=100) == 0


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
