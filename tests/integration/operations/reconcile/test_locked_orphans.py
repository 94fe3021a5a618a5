"""Orphans that the bucket itself keeps: refused, named, and erased when the lock ends."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest
from minio.commonconfig import COMPLIANCE
from minio.retention import Retention
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.access import Who
from inference_store.erasure import erasures
from inference_store.erasure.certificates import chain
from inference_store.erasure.certificates.keys import new_key
from inference_store.erasure.certificates.signed import read_signed
from inference_store.erasure.erasures import Erasure, obstacles
from inference_store.erasure.ledger import Ledger
from inference_store.inference.events import StorageKey
from inference_store.objects import Blobs
from inference_store.operations.reconcile import orphans
from inference_store.platform.settings import RetentionSettings
from inference_store.retention.certifier import Certifier
from inference_store.retention.orphans import Orphans
from tests.integration.retention.conftest import NoPace
from tests.integration.retention.stored import Storing
from tests.polling import until
from tests.servers.fixtures import unique
from tests.servers.minio import S3

from .conftest import Reconcile

pytestmark = pytest.mark.real_minio


@pytest.fixture
def bucket(minio_server: S3) -> str:
    return minio_server.create_bucket(unique(), object_lock=True)


async def _due(engine: AsyncEngine) -> list[Erasure]:
    async with engine.connect() as connection:
        return await erasures.unfinished(connection, failed=False)


async def _certified(engine: AsyncEngine, one: Erasure) -> Sequence[int]:
    """How many objects each of its certificates names."""
    async with engine.connect() as connection:
        rows = await chain.listed(connection, of=one.id)
    return [read_signed(row.signed).document["erased"]["objects"] for row in rows]


async def test_a_locked_orphan_is_named_and_goes_when_its_lock_ends(
    storing: Storing,
    reconcile: Reconcile,
    engine: AsyncEngine,
    blobs: Blobs,
    settings: RetentionSettings,
    minio_server: S3,
    bucket: str,
) -> None:
    locked, free = StorageKey(bucket, "p/locked"), StorageKey(bucket, "p/free")
    for key in (locked, free):
        blobs.put(key, b"left over", content_type="text/plain")
    report, _ = await reconcile()
    end = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=7)
    minio_server.client().set_object_retention(bucket, locked.key, Retention(COMPLIANCE, end))
    ledger = Ledger(engine, blobs, prefix="ledger/")
    certifier = Certifier(engine, blobs, [new_key()], events_seconds=3600)
    worker = Orphans(settings, engine, blobs, ledger, NoPace(), certifier)
    one = await orphans.request(ledger, report.id, Who("auditor", None))
    assert await worker.work(one, seconds=60)
    async with engine.connect() as connection:
        failed = await erasures.find(connection, one.id)
        [obstacle] = await obstacles.listed(connection, one.id)
    assert failed is not None
    assert (failed.state, failed.objects, failed.retry_at) == ("failed", 1, end)
    assert (obstacle.storage_key, obstacle.retry_at) == (str(locked), end)
    assert "WORM" in obstacle.message
    assert await _certified(engine, one) == []
    assert list(blobs.still_there([locked, free])) == [locked]
    assert storing.objects() == {locked.key}  # the object itself, and no marker over it
    [again] = await until(lambda: _due(engine), bool, seconds=180)
    assert await worker.work(again, seconds=60)
    async with engine.connect() as connection:
        ended = await erasures.find(connection, one.id)
        assert await obstacles.listed(connection, one.id) == []
    assert ended is not None
    assert (ended.state, ended.objects, ended.error) == ("certified", 2, None)
    assert await _certified(engine, one) == [2]
    assert list(blobs.still_there([locked, free])) == []
