"""An erasure reaches the exports that name what it erases; those that Postgres lost are deleted."""

from dataclasses import replace
from uuid import UUID

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.export.jobs import find_next, pack_uids, unpack_uids
from inference_store.export.listing import Listing, begin_listing
from inference_store.export.part_writing import write_part
from inference_store.objects import Blobs
from inference_store.retention.exporter import write_exports
from tests.integration.backups import Backup, Restore

from .conftest import Mark, NoPace
from .exported import (
    PLANTED,
    Exported,
    export_all,
    find_objects,
    plant,
    read_bucket,
    read_job,
)
from .stored import NOW, Stored, Storing, ago, make_leader
from .test_erasures import request_by_ids
from .test_export_jobs import COPIES, store_and_request


async def store_exported(storing: Storing, count: int) -> tuple[list[Stored], Exported]:
    members = await storing.inferences(await storing.model(), count, ago(days=1))
    return members, await export_all(storing.engine, storing.blobs, members)


async def test_the_parts_that_name_it_are_deleted_and_their_lists_are_without_it(
    storing: Storing,
) -> None:
    members, exported = await store_exported(storing, 25)
    doomed = [members[3], members[4], members[21]]
    assert plant(members[3].uid) in read_bucket(storing)
    erasure = await storing.request(*doomed)
    assert await storing.eraser.finish(erasure) == "deleted"
    assert exported.objects() == {"part 2"}
    job, parts, erased = await exported.job(), await exported.parts(), await exported.erased()
    assert [part.state for part in parts] == ["stale", "written", "stale"]
    assert [part.storage_key is None for part in parts] == [True, False, True]
    assert (job.state, job.parts_deleted, job.inferences_deleted) == ("stale", 2, 15)
    assert (job.written, job.rows, job.bytes, job.gone) == (1, 10, parts[1].bytes, 0)
    await run_turn(storing.engine, storing.blobs)
    assert exported.objects() == {"part 2"}, "no part is written again"
    remaining = sorted({stored.uid for stored in members} - {stored.uid for stored in doomed})
    assert [uid for part in parts for uid in unpack_uids(part.uids)] == remaining
    for part in parts:
        assert (part.first, part.last) == (min(unpack_uids(part.uids)), max(unpack_uids(part.uids)))
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
    members, exported = await store_exported(storing, 30)
    before = [part.uids for part in await exported.parts()]
    await storing.erase(members[0], scope="input")
    await storing.erase(members[10], scope="response")
    parts, erased = await exported.parts(), await exported.erased()
    assert [part.state for part in parts] == ["stale", "stale", "written"]
    assert [part.uids for part in parts] == before
    assert [(row.scope, row.inferences) for row in erased] == [("input", 1), ("response", 1)]
    assert [part.gone for part in parts] == [0, 0, 0]
    assert not {"part 1", "part 2"} & exported.objects()


async def test_what_was_erased_does_not_come_back_into_an_export_that_is_over(
    storing: Storing,
) -> None:
    members, exported = await store_exported(storing, 3)
    await exported.set_state("cancelling")
    await storing.erase(members[0])
    assert (await exported.job()).state == "cancelling"
    assert exported.objects() == set()
    await run_turn(storing.engine, storing.blobs)
    assert (await exported.parts(), exported.objects()) == ([], set())
    assert (await exported.job()).state == "cancelled"


async def test_the_list_of_a_downloaded_export_stays_when_its_objects_are_gone(
    storing: Storing,
) -> None:
    members, exported = await store_exported(storing, 3)
    await exported.download("key:reader")
    await exported.set_state("cancelling")
    await storing.erase(members[0])
    await run_turn(storing.engine, storing.blobs)
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


async def test_what_a_policy_takes_with_whole_partitions_is_recorded(storing: Storing) -> None:
    model = await storing.model()
    old = await storing.inferences(model, 12, ago(days=200))
    young = await storing.inferences(model, 3, NOW)
    exported = await export_all(storing.engine, storing.blobs, [*old, *young], size=6)
    await storing.keep(model, inference="P50D")
    assert (await storing.retain()).partitions_dropped > 0
    parts = await exported.parts()
    assert [part.state for part in parts] == ["stale", "stale", "written"]
    assert [part.uids for part in parts[:2]] == [b"", b""]
    job = await exported.job()
    assert (job.state, job.parts_deleted, job.inferences_deleted) == ("stale", 2, 12)
    assert sum(row.inferences for row in await exported.erased()) == 12


_MOST = 4


async def list_all(storing: Storing, engine: AsyncEngine, blobs: Blobs, id: UUID) -> None:
    """List the members, and write nothing."""
    await begin_listing(engine, await read_job(storing, id))
    while (job := await read_job(storing, id)).state == "listing":
        confirm = NoPace().confirm_leading
        await Listing(engine, blobs, job, _MOST, COPIES, confirm).list_some()


async def run_turn(engine: AsyncEngine, blobs: Blobs) -> None:
    """Let a retention service that has just begun to lead work on exports."""
    await write_exports(make_leader(engine, blobs, export_part_inferences=_MOST))


async def test_members_that_are_hidden_are_left_out_and_counted(
    storing: Storing, mark: Mark
) -> None:
    stored, id = await store_and_request(storing)
    await list_all(storing, storing.engine, storing.blobs, id)
    erasure = await request_by_ids(storing.engine, stored[1], stored[2])
    assert await mark(erasure) == "all"
    await run_turn(storing.engine, storing.blobs)
    hidden = await read_job(storing, id)
    assert (hidden.state, hidden.rows, hidden.gone) == ("done", len(stored) - 2, 2)


async def test_an_export_that_an_erasure_reaches_while_it_is_written_ends_as_stale(
    storing: Storing,
) -> None:
    stored, id = await store_and_request(storing)
    await list_all(storing, storing.engine, storing.blobs, id)
    [first, _, third] = [stored[at : at + _MOST] for at in range(0, len(stored), _MOST)]
    await storing.erase(third[0])
    async with storing.engine.connect() as connection:
        part = await find_next(connection, id)
    assert part is not None
    job = await read_job(storing, id)
    confirm = NoPace().confirm_leading
    await write_part(storing.engine, storing.blobs, job, part, limits=COPIES, confirm=confirm)
    await storing.erase(first[0])
    assert (await read_job(storing, id)).state == "writing"
    await run_turn(storing.engine, storing.blobs)
    ended = await read_job(storing, id)
    assert (ended.state, ended.written, ended.parts_deleted) == ("stale", 2, 1)
    assert (ended.rows, ended.gone, ended.inferences_deleted) == (2 * _MOST - 1, 1, _MOST)
    assert f"exports/{id}/manifest.json" not in find_objects(storing, f"exports/{id}/")


@pytest.mark.long
async def test_an_export_that_postgres_lost_is_deleted(
    storing: Storing, backup: Backup, restore: Restore
) -> None:
    members, known = await store_exported(storing, 25)
    dump = backup()
    lost = await export_all(storing.engine, storing.blobs, members)
    # a folder that the store did not name stays
    foreign = known.key("exports/no-uuid/parts/00001")
    late = known.key(f"exports/{known.id}/parts/00009-late.jsonl")
    for key in (foreign, late):
        storing.blobs.put(key, b"x", content_type="application/x-ndjson")
    left = set(find_objects(storing, f"exports/{known.id}/")) - {late.key}
    older = storing.on(await restore(dump))
    await older.lead()
    assert set(find_objects(storing, "exports/")) == {*left, foreign.key}
    assert lost.objects() == set()
    await older.request(members[0])
    await older.lead()
    assert plant(members[0].uid) not in read_bucket(storing)


@pytest.mark.long
async def test_what_an_erasure_took_since_the_backup_goes_again(
    storing: Storing, backup: Backup, restore: Restore
) -> None:
    members, exported = await store_exported(storing, 12)
    dump = backup()
    await storing.request(members[0])
    await storing.lead()
    assert members[0].uid.bytes not in read_bucket(storing)
    older = storing.on(await restore(dump))
    exported = replace(exported, engine=older.engine)
    assert exported.objects() == {"part 2"}
    await older.ledger.replay()
    await older.lead()
    await older.request(members[0])
    await older.lead()
    assert exported.objects() == {"part 2"}
    assert members[0].uid.bytes not in read_bucket(storing)
    assert (await exported.job()).state == "stale"
