"""After a replay the orphans erased since an older backup are known to be erased."""

from collections.abc import Callable

import pytest
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.erasure.certify import chain
from inference_store.erasure.certify.archive import Archive
from inference_store.erasure.certify.verification import Verification
from inference_store.erasure.ledger import Ledger
from inference_store.index.tables import erasing_object
from inference_store.inference.errors import LedgerDiverged
from inference_store.inference.events import StorageKey
from inference_store.objects import Blobs
from inference_store.operations.reconcile import orphans
from inference_store.platform.settings import RetentionSettings
from inference_store.retention.certifier import Certifier
from inference_store.retention.orphan_eraser import OrphanEraser
from tests.integration.backups import Backup, Restore, backup, restore
from tests.integration.retention.stored import NoPace, Storing

from .conftest import KEY, WHO, Reconcile

__all__ = ["backup", "restore"]
MakeWorkers = Callable[[AsyncEngine], tuple[Storing, Ledger, Certifier, OrphanEraser]]


@pytest.fixture
def make_workers(bucket: str, blobs: Blobs, settings: RetentionSettings) -> MakeWorkers:
    """Return a factory of the parts of a retention service on a database."""

    def make(engine: AsyncEngine) -> tuple[Storing, Ledger, Certifier, OrphanEraser]:
        storing, ledger = Storing(engine, blobs, bucket), Ledger(engine, blobs, prefix="ledger/")
        certifier = storing.make_certifier(KEY)
        worker = OrphanEraser(settings, engine, blobs, ledger, NoPace(), certifier)
        return storing, ledger, certifier, worker

    return make


@pytest.mark.parametrize("backed_up", ["before the report", "after the report"])
async def test_orphans_erased_since_the_backup_keep_their_certificate(
    reconcile: Reconcile,
    engine: AsyncEngine,
    blobs: Blobs,
    bucket: str,
    make_workers: MakeWorkers,
    backup: Backup,
    restore: Restore,
    backed_up: str,
) -> None:
    keys = [StorageKey(bucket, f"p/{number}") for number in range(3)]
    for key in keys:
        blobs.put(key, b"left over", content_type="text/plain")
    dump = backup()
    report, _ = await reconcile()
    dump = backup() if backed_up == "after the report" else dump
    storing, ledger, _, worker = make_workers(engine)
    erasure = await orphans.request_erasure(ledger, report.id, WHO)
    assert await worker.work(erasure, seconds=300)
    before = await storing.reload(erasure)
    assert (before.state, before.objects) == ("certified", 3)

    older = await restore(dump)
    restored, ledger, certifier, worker = make_workers(older)
    with pytest.raises(LedgerDiverged):
        await ledger.compare()
    assert await ledger.replay() == 2
    again = await restored.reload(erasure)
    assert again.state not in {"certified", "deleted"}
    await certifier.begin()
    assert await worker.work(again, seconds=300)
    after = await restored.reload(erasure)
    assert (after.state, after.objects) == ("certified", 3)
    assert after.certificate == before.certificate
    async with older.connect() as connection:
        assert len(await chain.list_certificates(connection, erasure_id=erasure.id)) == 1
        query = select(func.count()).select_from(erasing_object)
        assert await connection.scalar(query) == 0
    verification = Verification(older, Archive(blobs), trusted={KEY.id})
    assert [str(wrong) async for wrong in verification.find_failures()] == []
    assert list(blobs.still_there(keys)) == []
