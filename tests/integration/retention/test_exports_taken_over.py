"""A leader that was frozen amid a part, and wakes when another one has erased what it holds."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import BinaryIO
from uuid import UUID

import pytest

from inference_store.export.jobs.members import read_members
from inference_store.inference.events import StorageKey
from inference_store.objects import Blobs
from inference_store.platform.settings import RetentionSettings
from inference_store.retention.export_worker import ExportWorker
from inference_store.retention.taken_over_parts import TakenOverParts
from inference_store.retention.turn_schedule import TurnSchedule

from .conftest import NoPace
from .requested_exports import read_job
from .stored import Storing
from .test_export_jobs import COPIES, store_and_request
from .test_exports import read_bucket


class Killed(Exception):
    """The process ends here."""


class FrozenBlobs(Blobs):
    """Is frozen before it puts the first part, until `meanwhile` is done."""

    meanwhile: Callable[[], Awaitable[object]] | None = None
    loop: asyncio.AbstractEventLoop
    fails = False
    part: StorageKey

    def put_file(self, key: StorageKey, file: BinaryIO, *, content_type: str) -> None:
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            self.part = key
            asyncio.run_coroutine_threadsafe(_run(meanwhile), self.loop).result()
        super().put_file(key, file, content_type=content_type)
        if meanwhile is not None and self.fails:
            raise Killed


async def _run(meanwhile: Callable[[], Awaitable[object]]) -> None:
    await meanwhile()


async def list_keys(blobs: Blobs, export: UUID) -> list[str]:
    prefix = f"exports/{export}/parts/"
    return [f.place.key for f in blobs.page(blobs.buckets.default, prefix, after="", limit=99)]


@pytest.mark.parametrize("fails", [False, True])
async def test_it_deletes_at_once_what_it_has_put_too_late(
    storing: Storing, settings: RetentionSettings, fails: bool
) -> None:
    stored, id = await store_and_request(storing)
    with FrozenBlobs(settings) as frozen:
        frozen.loop, frozen.fails = asyncio.get_running_loop(), fails
        frozen.meanwhile = lambda: storing.erase(stored[0])
        worker = ExportWorker(storing.engine, frozen, NoPace(), most=len(stored), copies=COPIES)
        if fails:
            with pytest.raises(Killed):
                await worker.run_turn()
        else:
            await worker.run_turn()
    assert frozen.part.key not in await list_keys(storing.blobs, id)
    assert stored[0].uid.bytes not in read_bucket(storing)
    assert str(stored[0].uid).encode() not in read_bucket(storing)


async def test_what_it_leaves_when_it_is_killed_is_deleted_by_the_new_leader(
    storing: Storing, settings: RetentionSettings
) -> None:
    stored, id = await store_and_request(storing)
    taken_over = TakenOverParts(storing.engine, storing.blobs, TurnSchedule(asyncio.Event()))
    planted = str(stored[0].uid).encode()

    async def take_over() -> None:
        await taken_over.remember()
        await storing.erase(stored[0])

    with FrozenBlobs(settings) as frozen:
        frozen.loop, frozen.meanwhile = asyncio.get_running_loop(), take_over
        worker = ExportWorker(storing.engine, frozen, NoPace(), most=len(stored), copies=COPIES)
        await worker.run_turn()
    storing.blobs.put(frozen.part, planted, content_type="application/x-ndjson")
    assert planted in read_bucket(storing)
    assert taken_over.is_due()
    await taken_over.delete()
    assert planted not in read_bucket(storing)
    [written] = await list_keys(storing.blobs, id)
    assert written != frozen.part.key


class Frozen(NoPace):
    """Leads until a confirmation, and then again."""

    def __init__(self, until: int) -> None:
        self.until = until

    async def confirm_leading(self) -> None:
        self.until -= 1
        if self.until == 0:
            raise Killed


async def test_a_list_that_it_writes_too_late_is_in_neither(storing: Storing) -> None:
    stored, id = await store_and_request(storing)
    worker = ExportWorker(storing.engine, storing.blobs, Frozen(2), most=len(stored), copies=COPIES)
    with pytest.raises(Killed):
        await worker.run_turn()
    assert stored[0].uid.bytes not in read_bucket(storing)
    assert await storing.transact(read_members, id, 1) == []
    await worker.run_turn()
    assert stored[0].uid.bytes in read_bucket(storing)
    assert len(await list_keys(storing.blobs, id)) == 1


async def test_it_ends_no_export_too_late(storing: Storing) -> None:
    stored, id = await store_and_request(storing)
    worker = ExportWorker(storing.engine, storing.blobs, Frozen(4), most=len(stored), copies=COPIES)
    with pytest.raises(Killed):
        await worker.run_turn()
    job = await read_job(storing, id)
    assert (job.state, job.written) == ("writing", 1)
    await worker.run_turn()
    assert (await read_job(storing, id)).state == "done"


async def test_a_part_that_is_still_named_stays(
    storing: Storing, settings: RetentionSettings
) -> None:
    stored, id = await store_and_request(storing)
    taken_over = TakenOverParts(storing.engine, storing.blobs, TurnSchedule(asyncio.Event()))
    assert not taken_over.is_due()
    with FrozenBlobs(settings) as frozen:
        frozen.loop, frozen.meanwhile = asyncio.get_running_loop(), taken_over.remember
        await ExportWorker(
            storing.engine, frozen, NoPace(), most=len(stored), copies=COPIES
        ).run_turn()
    await taken_over.delete()
    assert await list_keys(storing.blobs, id) == [frozen.part.key]
