"""Orphans locked by the bucket: an erasure names them, and erases them when the lock ends."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest
from minio.commonconfig import COMPLIANCE
from minio.retention import Retention
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.erasure.certify import chain
from inference_store.erasure.ledger import Ledger
from inference_store.erasure.log.signed_document import read_document
from inference_store.erasure.progress.erasure import Erasure, list_unfinished
from inference_store.erasure.verify.blocked_objects import list_blocked
from inference_store.inference.events import StorageKey
from inference_store.objects import Blobs
from inference_store.operations.reconcile import orphans
from inference_store.retention.orphan_eraser import OrphanEraser
from tests.integration.retention.stored import Storing
from tests.polling import until
from tests.servers.fixtures import unique
from tests.servers.minio import S3

from .conftest import WHO, Reconcile

pytestmark = pytest.mark.real_minio


@pytest.fixture
def bucket(minio_server: S3) -> str:
    return minio_server.create_bucket(unique(), object_lock=True)


async def _list_unfinished(engine: AsyncEngine) -> list[Erasure]:
    async with engine.connect() as connection:
        return await list_unfinished(connection, failed=False)


async def _list_due(engine: AsyncEngine) -> list[Erasure]:
    """Return the erasures that a run works on."""
    async with engine.connect() as connection:
        failed = await list_unfinished(connection, failed=True)
    # If the lock ends while a try fails, nobody says when: the next run tries again.
    again = [erasure for erasure in failed if erasure.state == "failed" and not erasure.retry_at]
    return await _list_unfinished(engine) + again


async def _count_certified(engine: AsyncEngine, erasure: Erasure) -> Sequence[int]:
    """Return the number of objects in each certificate of an erasure."""
    async with engine.connect() as connection:
        rows = await chain.list_certificates(connection, erasure_id=erasure.id)
    return [read_document(row.signed).document["erased"]["objects"] for row in rows]


def put_orphans(
    blobs: Blobs, minio: S3, bucket: str, lock: timedelta
) -> tuple[StorageKey, StorageKey, datetime]:
    """Put an object that is locked for so long, and one that is not; return also the lock's end."""
    locked, free = StorageKey(bucket, "p/locked"), StorageKey(bucket, "p/free")
    for key in (locked, free):
        blobs.put(key, b"left over", content_type="text/plain")
    end = datetime.now(UTC).replace(microsecond=0) + lock
    minio.client().set_object_retention(bucket, locked.key, Retention(COMPLIANCE, end))
    return locked, free, end


async def test_names_a_locked_orphan(
    storing: Storing,
    reconcile: Reconcile,
    engine: AsyncEngine,
    blobs: Blobs,
    ledger: Ledger,
    orphan_eraser: OrphanEraser,
    minio_server: S3,
    bucket: str,
) -> None:
    locked, free, end = put_orphans(blobs, minio_server, bucket, timedelta(days=1))
    report, _ = await reconcile()
    erasure = await orphans.request_erasure(ledger, report.id, WHO)
    assert await orphan_eraser.work(erasure, seconds=300)
    failed = await storing.reload(erasure)
    async with engine.connect() as connection:
        [obstacle] = await list_blocked(connection, erasure.id)
    assert (failed.state, failed.objects, failed.retry_at) == ("failed", 1, end)
    assert (obstacle.storage_key, obstacle.retry_at) == (str(locked), end)
    assert "WORM" in obstacle.message
    assert await _list_unfinished(engine) == []
    assert await _count_certified(engine, erasure) == []
    assert list(blobs.still_there([locked, free])) == [locked]
    assert storing.objects() == {locked.key}  # the object itself, without a delete marker


async def test_erases_a_locked_orphan_when_its_lock_ends(
    storing: Storing,
    reconcile: Reconcile,
    engine: AsyncEngine,
    blobs: Blobs,
    ledger: Ledger,
    orphan_eraser: OrphanEraser,
    minio_server: S3,
    bucket: str,
) -> None:
    # So brief that it ends: on a busy machine before the first try.
    *keys, _ = put_orphans(blobs, minio_server, bucket, timedelta(seconds=6))
    report, _ = await reconcile()
    erasure = await orphans.request_erasure(ledger, report.id, WHO)

    async def work_when_due() -> Erasure:
        if await _list_due(engine):
            assert await orphan_eraser.work(erasure, seconds=300)
        return await storing.reload(erasure)

    ended = await until(work_when_due, lambda found: found.state == "certified")
    assert (ended.objects, ended.error) == (2, None)
    async with engine.connect() as connection:
        assert await list_blocked(connection, erasure.id) == []
    assert await _count_certified(engine, erasure) == [2]
    assert list(blobs.still_there(keys)) == []
