"""Who drains a dead producer's spool is killed, and the next one goes on: the books close."""

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
from inference_store.proxy.capture.folder_locks import made_folder
from inference_store.proxy.capture.prepared import Message, Prepared
from inference_store.proxy.capture.spool import Folder, Room
from inference_store.proxy.capture.spools import Spools
from inference_store.proxy.capture.uuid7 import uuid7
from tests.settings import make_settings

DEAD, HEIR = str(uuid7()), str(uuid7())
BOOTED = datetime.now(UTC)
REPORTS = PartitionId("default", "reports", 0, 0)


def left_behind(root: Path, captures: int) -> ProducerReport:
    """The last report of one that died with so many captures in its spool."""
    counts = Counts(DEAD, DEAD, BOOTED)
    folder = Folder(root, counts, Room(10**6), lock := made_folder(root, DEAD), fsync=False)
    for _ in range(captures):
        counts.see()
        number = counts.next_sequence()
        message = (Message(b"key", b"{}"),)
        assert folder.write(Prepared(producer=DEAD, sequence=number, blobs=(), messages=message))
    os.close(lock)  # as the kernel does at its death
    return counts.report(spooled=folder.waiting)


class Child:
    """A capture process of the one that found the spool."""

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
        """A report before each and at the end."""
        said: list[ProducerReport] = []
        (folder,) = self.spools.adopted
        for _ in range(count):
            said.append(folder.counts.report(spooled=folder.waiting))
            item = self.spools.take()
            assert item is not None
            _settle_spooled(item, 1)
        return [*said, folder.counts.report(spooled=folder.waiting, final=not folder.waiting)]

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
        (found,) = await accounting.list_producers(connection)
    return found


async def test_the_next_one_goes_on_where_the_killed_one_stopped(
    engine: AsyncEngine, tmp_path: Path
) -> None:
    reports = [left_behind(tmp_path, 30)]
    lock = made_folder(tmp_path, HEIR)
    first = Child(tmp_path, lock)
    reports += first.publish(12)
    first.die()
    second = Child(tmp_path, lock)
    reports += second.publish(18)
    assert reports[-1].final
    totals = (await _account(engine, reports)).totals
    assert totals.closes
    assert (totals.seen, totals.published, totals.events) == (30, 30, 30)
    assert (totals.queued, totals.spooled, totals.unsettled, totals.dropped) == (0, 0, 0, {})
    second.spools.close()
    os.close(lock)
