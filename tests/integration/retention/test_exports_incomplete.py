"""A part that lacks what an erasure hid is written again if the erasure is cancelled."""

from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.erasure.request.cancellation import request_cancellation
from inference_store.export.jobs.listing import begin_listing, list_some
from inference_store.objects import Blobs
from inference_store.retention.eraser import Eraser
from inference_store.retention.export_worker import ExportWorker
from inference_store.retention.marker import Marker

from .conftest import NoPace
from .requested_exports import find_objects, read_job
from .stored import Storing
from .test_export_jobs import COPIES, check_written, store_and_request
from .test_marked_by_another import marker, request_by_ids

__all__ = ["marker"]
_MOST = 4


async def list_all(storing: Storing, engine: AsyncEngine, blobs: Blobs, id: UUID) -> None:
    """List the members, and write nothing."""
    await begin_listing(engine, blobs, await read_job(storing, id))
    while (job := await read_job(storing, id)).state == "listing":
        confirm = NoPace().confirm_leading
        await list_some(engine, blobs, job, most=_MOST, copies=COPIES, confirm=confirm)


async def run_turn(engine: AsyncEngine, blobs: Blobs) -> None:
    """Let a retention service that has just begun to lead work on exports."""
    await ExportWorker(engine, blobs, NoPace(), most=_MOST, copies=COPIES).run_turn()


async def test_members_that_are_visible_again_come_back(
    storing: Storing, engine: AsyncEngine, blobs: Blobs, marker: Marker
) -> None:
    stored, id = await store_and_request(storing)
    await list_all(storing, engine, blobs, id)
    erasure = await request_by_ids(engine, stored[1], stored[2])
    assert await marker.mark(erasure) == "all"
    await run_turn(engine, blobs)
    hidden = await read_job(storing, id)
    assert (hidden.state, hidden.rows, hidden.gone) == ("done", len(stored) - 2, 2)
    async with engine.begin() as connection:
        await request_cancellation(connection, erasure.id)
    assert await marker.mark(erasure) == "over"
    await run_turn(engine, blobs)
    whole = await read_job(storing, id)
    assert (whole.state, whole.rows, whole.gone) == ("done", len(stored), 0)
    await check_written(storing, stored, id)


async def test_a_part_stays_as_it_is_while_its_members_are_hidden(
    storing: Storing, engine: AsyncEngine, blobs: Blobs, marker: Marker, eraser: Eraser
) -> None:
    stored, id = await store_and_request(storing)
    await list_all(storing, engine, blobs, id)
    erasure = await request_by_ids(engine, stored[1])
    assert await marker.mark(erasure) == "all"
    await run_turn(engine, blobs)
    objects = find_objects(storing, f"exports/{id}/parts/")
    await run_turn(engine, blobs)
    assert find_objects(storing, f"exports/{id}/parts/") == objects
    assert await eraser.finish(erasure) == "deleted"
    await run_turn(engine, blobs)
    job = await read_job(storing, id)
    assert (job.state, job.rows, job.gone) == ("done", len(stored) - 1, 1)
