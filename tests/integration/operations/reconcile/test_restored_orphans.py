"""Orphans that were erased since an older backup was made are known to be gone after a replay."""

from collections.abc import Callable

import pytest
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.access import Who
from inference_store.erasure import erasures
from inference_store.erasure.certificates import chain
from inference_store.erasure.certificates.archive import Archive
from inference_store.erasure.certificates.keys import new_key
from inference_store.erasure.certificates.verifying import Verification
from inference_store.erasure.erasures import Erasure
from inference_store.erasure.ledger import Ledger
from inference_store.index.tables import erasing_object
from inference_store.inference.errors import LedgerApart
from inference_store.inference.events import StorageKey
from inference_store.objects import Blobs
from inference_store.operations.reconcile import orphans
from inference_store.platform.settings import RetentionSettings
from inference_store.retention.certifier import Certifier
from inference_store.retention.orphans import Orphans
from tests.integration.backups import Backup, Restore, backup, restore
from tests.integration.retention.conftest import NoPace

from .conftest import Reconcile

__all__ = ["backup", "restore"]
KEY = new_key()
Worker = Callable[[AsyncEngine], tuple[Ledger, Certifier, Orphans]]


@pytest.fixture
def of(blobs: Blobs, settings: RetentionSettings) -> Worker:
    """What a retention service on a database has."""

    def make(engine: AsyncEngine) -> tuple[Ledger, Certifier, Orphans]:
        ledger = Ledger(engine, blobs, prefix="ledger/")
        certifier = Certifier(engine, blobs, [KEY], events_seconds=3600)
        return ledger, certifier, Orphans(settings, engine, blobs, ledger, NoPace(), certifier)

    return make


async def _found(engine: AsyncEngine, one: Erasure) -> Erasure:
    async with engine.connect() as connection:
        found = await erasures.find(connection, one.id)
    assert found is not None
    return found


@pytest.mark.parametrize("backed_up", ["before the report", "after the report"])
async def test_orphans_erased_since_the_backup_are_gone_by_the_certificate_that_they_have(
    reconcile: Reconcile,
    engine: AsyncEngine,
    blobs: Blobs,
    bucket: str,
    of: Worker,
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
    ledger, _, worker = of(engine)
    one = await orphans.request(ledger, report.id, Who("auditor", None))
    assert await worker.work(one, seconds=60)
    before = await _found(engine, one)
    assert (before.state, before.objects) == ("certified", 3)

    older = await restore(dump)
    ledger, certifier, worker = of(older)
    with pytest.raises(LedgerApart):
        await ledger.look()
    assert await ledger.replay() == 2
    again = await _found(older, one)
    assert again.state not in {"certified", "deleted"}
    await certifier.begin()
    assert await worker.work(again, seconds=60)
    after = await _found(older, one)
    assert (after.state, after.objects) == ("certified", 3)
    assert after.certificate == before.certificate
    async with older.connect() as connection:
        assert len(await chain.listed(connection, of=one.id)) == 1
        named = select(func.count()).select_from(erasing_object)
        assert await connection.scalar(named) == 0
    verification = Verification(older, Archive(blobs), trusted={KEY.id})
    assert [str(wrong) async for wrong in verification.wrongs()] == []
    assert list(blobs.still_there(keys)) == []
