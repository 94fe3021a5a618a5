"""Orphans locked by the bucket: an erasure names them, and erases them when the lock ends."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest
from minio.commonconfig import COMPLIANCE
from minio.retention import Retention
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.access import Who
from inference_store.erasure.certify import chain
from inference_store.erasure.ledger import Ledger
from inference_store.erasure.log.keys import new_key
from inference_store.erasure.log.signed_document import read_document
from inference_store.erasure.progress.erasure import Erasure, find_erasure, list_unfinished
from inference_store.erasure.verify.blocked_objects import list_blocked
from inference_store.inference.events import StorageKey
from inference_store.objects import Blobs
from inference_store.operations.reconcile import orphans
from inference_store.platform.settings import RetentionSettings
from inference_store.retention.certifier import Certifier
from inference_store.retention.orphan_eraser import OrphanEraser
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


async def _list_unfinished(engine: AsyncEngine) -> list[Erasure]:
    async with engine.connect() as connection:
        return await list_unfinished(connection, failed=False)


async def _count_certified(engine: AsyncEngine, erasure: Erasure) -> Sequence[int]:
    """Return the number of objects in each certificate of an erasure."""
    async with engine.connect() as connection:
        rows = await chain.list_certificates(connection, erasure_id=erasure.id)
    return [read_document(row.signed).document["erased"]["objects"] for row in rows]


async def test_erases_a_locked_orphan_when_its_lock_ends(
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
    worker = OrphanEraser(settings, engine, blobs, ledger, NoPace(), certifier)
    erasure = await orphans.request_erasure(ledger, report.id, Who("auditor", None))
    assert await worker.work(erasure, seconds=60)
    async with engine.connect() as connection:
        failed = await find_erasure(connection, erasure.id)
        [obstacle] = await list_blocked(connection, erasure.id)
    assert failed is not None
    assert (failed.state, failed.objects, failed.retry_at) == ("failed", 1, end)
    assert (obstacle.storage_key, obstacle.retry_at) == (str(locked), end)
    assert "WORM" in obstacle.message
    assert await _count_certified(engine, erasure) == []
    assert list(blobs.still_there([locked, free])) == [locked]
    assert storing.objects() == {locked.key}  # the object itself, without a delete marker
    [again] = await until(lambda: _list_unfinished(engine), bool, seconds=180)
    assert await worker.work(again, seconds=60)
    async with engine.connect() as connection:
        ended = await find_erasure(connection, erasure.id)
        assert await list_blocked(connection, erasure.id) == []
    assert ended is not None
    assert (ended.state, ended.objects, ended.error) == ("certified", 2, None)
    assert await _count_certified(engine, erasure) == [2]
    assert list(blobs.still_there([locked, free])) == []
