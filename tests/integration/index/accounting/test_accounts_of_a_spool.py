"""A process that drains the spool of a dead producer is killed, and the next one continues."""

import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.index import accounting
from inference_store.index.accounting import PartitionId, ReceivedReport
from inference_store.inference.producer_reports import ProducerReport
from inference_store.platform.settings import ProxySettings
from inference_store.proxy.capture.counts import Counts
from inference_store.proxy.capture.deliveries import _settle_spooled
from inference_store.proxy.capture.folder_locks import make_folder
from inference_store.proxy.capture.prepared_capture import Message, PreparedCapture
from inference_store.proxy.capture.spool import Folder, Room
from inference_store.proxy.capture.spools import Spools
from inference_store.proxy.capture.uuid7 import uuid7
from tests.settings import make_settings

DEAD, HEIR = str(uuid7()), str(uuid7())
BOOTED = datetime.now(UTC)
REPORTS = PartitionId("default", "reports", 0, 0)


def leave_spool(root: Path, captures: int) -> ProducerReport:
    """Write captures to the spool of a producer that dies; return its last report."""
    counts = Counts(DEAD, DEAD, BOOTED)
    folder = Folder(root, counts, Room(10**6), lock := make_folder(root, DEAD), fsync=False)
    for _ in range(captures):
        counts.see()
        number = counts.next_sequence()
        message = (Message(b"key", b"{}"),)
        assert folder.write(
            PreparedCapture(producer=DEAD, sequence=number, blobs=(), messages=message)
        )
    os.close(lock)  # as the kernel does when it dies
    return counts.report(spooled=folder.waiting)


class Child:
    """A capture process that drains a spool it found."""

    def __init__(self, root: Path, lock: int) -> None:
        settings = make_settings(
            ProxySettings,
            proxy_upstream="http://up",
            proxy_spool="all",
            proxy_spool_directory=root,
        )
        self.spools = Spools(settings, Counts(HEIR, HEIR, BOOTED), os.dup(lock))
        self.spools.open()
        self.spools.adopt()

    def publish(self, count: int) -> list[ProducerReport]:
        """Publish captures; return a report before each and one at the end."""
        reports: list[ProducerReport] = []
        (folder,) = self.spools.adopted
        for _ in range(count):
            reports.append(folder.counts.report(spooled=folder.waiting))
            item = self.spools.take()
            assert item is not None
            _settle_spooled(item, 1)
        return [*reports, folder.counts.report(spooled=folder.waiting, final=not folder.waiting)]

    def die(self) -> None:
        for folder in self.spools.adopted:
            os.close(folder._lock_file)


async def _account(
    engine: AsyncEngine, reports: Sequence[ProducerReport]
) -> accounting.ProducerAccount:
    async with engine.begin() as connection:
        for number, report in enumerate(reports):
            await accounting.store_reports(
                connection, [ReceivedReport(report, REPORTS, offset=number)]
            )
        (account,) = await accounting.list_producers(connection)
    return account


async def test_next_process_continues_a_killed_drain(engine: AsyncEngine, tmp_path: Path) -> None:
    reports = [leave_spool(tmp_path, 30)]
    lock = make_folder(tmp_path, HEIR)
    first = Child(tmp_path, lock)
    reports += first.publish(12)
    first.die()
    second = Child(tmp_path, lock)
    reports += second.publish(18)
    assert reports[-1].final
    totals = (await _account(engine, reports)).totals
    assert totals.add_up
    assert (totals.seen, totals.published, totals.events) == (30, 30, 30)
    assert (totals.queued, totals.spooled, totals.unsettled, totals.dropped) == (0, 0, 0, {})
    second.spools.close()
    os.close(lock)
