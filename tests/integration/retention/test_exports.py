"""An erasure reaches the exports that name what it erases, before it ends."""

from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.erasure.request.cancellation import request_cancellation
from inference_store.export.jobs.listing import begin_listing, list_some
from inference_store.export.jobs.members import pack_uids, unpack_uids
from inference_store.objects import Blobs
from inference_store.retention.export_worker import ExportWorker
from inference_store.retention.marker import Marker

from .conftest import NoPace, Retain
from .exported import PLANTED, export_all, plant
from .requested_exports import find_objects, read_job
from .stored import NOW, Storing, ago
from .test_export_jobs import COPIES, check_written, store_and_request
from .test_marked_by_another import marker, request_by_ids


def read_bucket(storing: Storing) -> bytes:
    """Every byte of every object, but for the store's own records."""
    client = storing.blobs._minio
    blobs = [client.get_object(storing.bucket, name) for name in storing.objects()]
    return b"".join(blob.read() for blob in blobs)


async def test_the_parts_that_name_it_are_deleted_and_their_lists_are_without_it(
    storing: Storing,
) -> None:
    model = await storing.model()
    members = await storing.inferences(model, 25, ago(days=1))
    exported = await export_all(storing.engine, storing.blobs, members)
    doomed = [members[3], members[4], members[21]]
    assert plant(members[3].uid) in read_bucket(storing)
    erasure = await storing.request(*doomed)
    assert await storing.eraser.finish(erasure) == "deleted"
    names = {"export.json", "part 2", *(f"members/{n:05}" for n in (1, 2, 3))}
    assert exported.objects() == names
    job, parts, erased = await exported.job(), await exported.parts(), await exported.erased()
    assert [part.state for part in parts] == ["listed", "written", "listed"]
    assert [part.storage_key is None for part in parts] == [True, False, True]
    assert (parts[0].rows, parts[0].bytes, parts[0].sha256, parts[0].written_at) == (None,) * 4
    assert [part.gone for part in parts] == [2, 0, 1]
    assert (job.state, job.finished_at, job.gone) == ("writing", None, 3)
    assert (job.written, job.rows, job.bytes) == (1, 10, parts[1].bytes)
    remaining = sorted({stored.uid for stored in members} - {stored.uid for stored in doomed})
    assert [uid for part in parts for uid in unpack_uids(part.uids)] == remaining
    for part in parts:
        assert (part.first, part.last) == (min(unpack_uids(part.uids)), max(unpack_uids(part.uids)))
        assert exported.read(f"exports/{exported.id}/members/{part.number:05}") == part.uids
    assert {row.part: row.inferences for row in erased} == {1: 2, 3: 1}
    assert all(row.deleted_at is not None and row.erasure == erasure.id for row in erased)
    assert sorted(uid for row in erased for uid in unpack_uids(row.uids)) == sorted(
        stored.uid for stored in doomed
    )
    everything = read_bucket(storing)
    assert [stored for stored in doomed if plant(stored.uid) in everything] == []
    assert [stored for stored in doomed if stored.uid.bytes in everything] == []
    assert PLANTED in everything


async def test_a_part_with_what_was_erased_of_its_members_goes_and_they_stay_listed(
    storing: Storing,
) -> None:
    model = await storing.model()
    members = await storing.inferences(model, 30, ago(days=1))
    exported = await export_all(storing.engine, storing.blobs, members)
    before = [part.uids for part in await exported.parts()]
    await storing.erase(members[0], scope="input")
    await storing.erase(members[10], scope="response")
    parts, erased = await exported.parts(), await exported.erased()
    assert [part.state for part in parts] == ["listed", "listed", "written"]
    assert [part.uids for part in parts] == before
    assert [(row.scope, row.inferences) for row in erased] == [("input", 1), ("response", 1)]
    assert [part.gone for part in parts] == [0, 0, 0]
    assert not {"part 1", "part 2"} & exported.objects()


async def test_a_list_of_which_nothing_is_left_goes_from_the_bucket(storing: Storing) -> None:
    model = await storing.model()
    members = await storing.inferences(model, 3, ago(days=1))
    exported = await export_all(storing.engine, storing.blobs, members)
    await storing.erase(*members)
    assert exported.objects() == {"export.json"}
    [part] = await exported.parts()
    assert (part.uids, part.state, part.gone) == (b"", "listed", 3)


async def test_what_was_erased_does_not_come_back_into_an_export_that_is_over(
    storing: Storing,
) -> None:
    model = await storing.model()
    members = await storing.inferences(model, 3, ago(days=1))
    exported = await export_all(storing.engine, storing.blobs, members)
    await exported.set_state("cancelled")
    await storing.erase(members[0])
    [part], job = await exported.parts(), await exported.job()
    assert (part.state, part.uids, job.state) == ("removed", b"", "cancelled")


async def test_the_list_of_a_downloaded_export_stays_when_its_objects_are_gone(
    storing: Storing,
) -> None:
    model = await storing.model()
    members = await storing.inferences(model, 3, ago(days=1))
    exported = await export_all(storing.engine, storing.blobs, members)
    await exported.download("key:reader")
    await exported.set_state("expired")
    await storing.erase(members[0])
    [part] = await exported.parts()
    assert (part.state, part.uids) == ("removed", pack_uids(sorted(s.uid for s in members[1:])))
    await storing.erase(members[1])
    [part] = await exported.parts()
    assert (part.state, part.uids) == ("removed", members[2].uid.bytes)
    assert [row.storage_key is None for row in await exported.erased()] == [False, True]


async def test_exports_of_another_model_and_those_that_do_not_name_it_are_left_alone(
    storing: Storing,
) -> None:
    model, other = await storing.model(), await storing.model("other")
    at = ago(days=1)
    members = await storing.inferences(model, 12, at)
    others = await storing.inferences(other, 12, at)
    between = await storing.inferences(model, 1, at.replace(microsecond=500_000))
    exports = [await export_all(storing.engine, storing.blobs, some) for some in (members, others)]
    await storing.erase(between[0])
    for exported in exports:
        assert {part.state for part in await exported.parts()} == {"written"}
        assert await exported.erased() == []


async def test_what_a_policy_takes_with_whole_partitions_is_recorded(
    storing: Storing, retain: Retain
) -> None:
    model = await storing.model()
    old = await storing.inferences(model, 12, ago(days=200))
    young = await storing.inferences(model, 3, NOW)
    exported = await export_all(storing.engine, storing.blobs, [*old, *young], size=6)
    await storing.keep(model, inference="P50D")
    assert (await retain()).partitions_dropped > 0
    parts = await exported.parts()
    # written again by the same turn: there is nothing to write
    assert [part.state for part in parts] == ["removed", "removed", "written"]
    assert [part.uids for part in parts[:2]] == [b"", b""]
    assert (await exported.job()).state == "done"
    assert sum(row.inferences for row in await exported.erased()) == 12


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


async def test_members_that_are_visible_again_come_back(storing: Storing, marker: Marker) -> None:
    stored, id = await store_and_request(storing)
    await list_all(storing, storing.engine, storing.blobs, id)
    erasure = await request_by_ids(storing.engine, stored[1], stored[2])
    assert await marker.mark(erasure) == "all"
    await run_turn(storing.engine, storing.blobs)
    hidden = await read_job(storing, id)
    assert (hidden.state, hidden.rows, hidden.gone) == ("done", len(stored) - 2, 2)
    await storing.transact(request_cancellation, erasure.id)
    assert await marker.mark(erasure) == "over"
    await run_turn(storing.engine, storing.blobs)
    whole = await read_job(storing, id)
    assert (whole.state, whole.rows, whole.gone) == ("done", len(stored), 0)
    await check_written(storing, stored, id)


async def test_a_part_stays_as_it_is_while_its_members_are_hidden(
    storing: Storing, marker: Marker
) -> None:
    stored, id = await store_and_request(storing)
    await list_all(storing, storing.engine, storing.blobs, id)
    erasure = await request_by_ids(storing.engine, stored[1])
    assert await marker.mark(erasure) == "all"
    await run_turn(storing.engine, storing.blobs)
    objects = find_objects(storing, f"exports/{id}/parts/")
    await run_turn(storing.engine, storing.blobs)
    assert find_objects(storing, f"exports/{id}/parts/") == objects
    assert await storing.eraser.finish(erasure) == "deleted"
    await run_turn(storing.engine, storing.blobs)
    job = await read_job(storing, id)
    assert (job.state, job.rows, job.gone) == ("done", len(stored) - 1, 1)
