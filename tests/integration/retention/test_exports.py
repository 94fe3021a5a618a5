"""An erasure reaches the exports that name what it erases, also those that Postgres lost."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from uuid import UUID

import pytest
from pydantic import SecretStr
from sqlalchemy import insert, select
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.erasure.log import new_key
from inference_store.export.jobs import find_next, pack_uids, unpack_uids
from inference_store.export.listing import Listing, begin_listing
from inference_store.export.part_writing import write_part
from inference_store.index import partitions, registrations
from inference_store.index.tables import export_job, inference
from inference_store.inference.events.event import received_at_of
from inference_store.objects import Blobs
from inference_store.platform.settings import RetentionSettings
from inference_store.retention.marker import write_exports
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
from .test_certificates import list_erasures
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
    names = {"export.json", "part 2", *(f"members/{n:05}" for n in (1, 2, 3))}
    assert exported.objects() == names
    job, parts, erased = await exported.job(), await exported.parts(), await exported.erased()
    assert [part.state for part in parts] == ["stale", "written", "stale"]
    assert [part.storage_key is None for part in parts] == [True, False, True]
    assert (job.state, job.parts_deleted, job.inferences_deleted) == ("stale", 2, 15)
    assert (job.written, job.rows, job.bytes, job.gone) == (1, 10, parts[1].bytes, 0)
    await run_turn(storing.engine, storing.blobs)
    assert exported.objects() == names, "no part is written again"
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
    assert exported.objects() == {"export.json"}
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
    await begin_listing(engine, blobs, await read_job(storing, id))
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


@pytest.fixture
def settings(settings: RetentionSettings) -> RetentionSettings:
    return settings.model_copy(update={"certificate_key": SecretStr(new_key().pem)})


@pytest.mark.long
async def test_an_export_that_postgres_lost_is_found_by_an_erasure(
    storing: Storing, backup: Backup, restore: Restore
) -> None:
    model = await storing.model()
    members = await storing.inferences(model, 25, ago(days=1))
    dump = backup()
    exported = await export_all(storing.engine, storing.blobs, members)
    before, parts_before = await exported.job(), await exported.parts()
    await exported.download("key:reader")
    older = storing.on(await restore(dump))
    assert await older.fetch(select(export_job)) == []
    exported = replace(exported, engine=older.engine)
    await older.lead()
    job, parts = await exported.job(), await exported.parts()
    assert (job.state, job.members, job.rows, job.lists) == ("done", 25, 25, 3)
    assert (job.bytes, job.expires_at, job.requested_by) == (
        *(before.bytes, before.expires_at),
        "key:exporter",
    )
    same = ("number", "first", "last", "uids", "state", "storage_key", "rows", "bytes", "sha256")
    for name in same:
        assert [getattr(part, name) for part in parts] == [getattr(p, name) for p in parts_before]
    await older.request(members[0])
    await older.lead()
    assert plant(members[0].uid) not in read_bucket(storing)
    assert members[0].uid.bytes not in read_bucket(storing)
    [certificate] = await list_erasures(older.engine)
    assert certificate["exports"] == [
        {
            **{"export": str(exported.id), "inferences": 1, "parts_deleted": 1},
            **{"downloads": [], "restored": True},
        }
    ]
    unknown = f"export {exported.id}: who downloaded it before Postgres was restored is unknown"
    assert {"where": unknown, "clear_at": None} in certificate["remains"]


async def bring_back(older: Storing, newer: Storing, members: Sequence[Stored]) -> int:
    """Register the model, and store its inferences, as the ingester does; return its integer."""
    model = await older.transact(registrations.ensure, "model")
    times = [received_at_of(stored.uid) for stored in members]
    await partitions.make_missing(older.engine, times, target=5_000_000)
    rows = [{**row._mapping, "model": model} for row in await newer.fetch(select(inference))]
    async with older.engine.begin() as connection:
        await connection.execute(insert(inference), rows)
    return model


@pytest.mark.long
@pytest.mark.parametrize("expires_in", [timedelta(days=7), timedelta(seconds=-1)])
async def test_an_export_is_found_whose_model_comes_back_after_the_restore(
    storing: Storing, backup: Backup, restore: Restore, expires_in: timedelta
) -> None:
    dump = backup()
    await storing.model("another")
    members = await storing.inferences(await storing.model(), 12, ago(days=1))
    exported = await export_all(storing.engine, storing.blobs, members, expires_in=expires_in)
    older = storing.on(await restore(dump))
    await older.lead()
    model = await bring_back(older, storing, members)
    await older.request(replace(members[0], model=model))
    await older.lead()
    assert plant(members[0].uid) not in read_bucket(storing)
    assert members[0].uid.bytes not in read_bucket(storing)
    [certificate] = await list_erasures(older.engine)
    [named] = certificate["exports"]
    assert (named["export"], named["inferences"], named["restored"]) == (str(exported.id), 1, True)
    if expires_in > timedelta():
        assert [name for name in exported.objects() if "part" in name] == ["part 2"]


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
    left = {"export.json", "part 2", "members/00001", "members/00002"}
    assert exported.objects() == left
    await older.ledger.replay()
    await older.lead()
    await older.request(members[0])
    await older.lead()
    assert exported.objects() == left
    assert members[0].uid.bytes not in read_bucket(storing)
    assert (await exported.job()).state == "stale"


@pytest.mark.long
async def test_one_that_was_not_done_is_imported_as_failed_with_its_objects(
    storing: Storing,
) -> None:
    members, exported = await store_exported(storing, 12)
    storing.blobs.delete_objects([exported.key(f"exports/{exported.id}/manifest.json")])
    await exported.forget()
    # neither is an export
    for name in ("no-uuid/export.json", f"{members[0].uid}/export.json"):
        storing.blobs.put(exported.key(f"exports/{name}"), b"{}", content_type="application/json")
    await storing.lead()
    job = await exported.job()
    assert job.state == "failed"
    assert "request it again" in job.error
    assert [part.state for part in await exported.parts()] == ["writing", "writing"]
    await storing.request(members[11])
    await storing.lead()
    assert "part 1" in exported.objects()
    assert "part 2" not in exported.objects()


async def test_one_that_expired_meanwhile_is_deleted_and_its_lists_stay_known(
    storing: Storing,
) -> None:
    model = await storing.model()
    members = await storing.inferences(model, 3, ago(days=1))
    exported = await export_all(
        storing.engine, storing.blobs, members, expires_in=timedelta(seconds=-1)
    )
    await exported.forget()
    await storing.lead()
    assert exported.objects() == set()
    assert (await exported.job()).state == "expired"
    [part] = await exported.parts()
    assert (part.state, len(part.uids)) == ("removed", 3 * 16)
