"""Erasures reach exports; a real process writes these, is killed, refused and overtaken."""

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO
from uuid import UUID

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.export.jobs import (
    Part,
    find_next,
    list_parts,
    move_job,
    pack_uids,
    read_members,
    unpack_uids,
)
from inference_store.export.listing import Listing, begin_listing
from inference_store.export.part_formats import CopyLimits
from inference_store.export.part_writing import write_part
from inference_store.inference.events import StorageKey, parse_stored
from inference_store.objects import Blobs
from inference_store.platform.backoff import Stopped
from inference_store.platform.failpoints import FAILPOINTS
from inference_store.platform.settings import RetentionSettings
from inference_store.retention.exporter import write_exports
from inference_store.retention.run import delete_taken_over, has_taken_over, remember_parts
from tests.integration.backups import Backup, Restore
from tests.kill_chain import KillChain, chain_kills
from tests.servers.fixtures import unique
from tests.servers.minio import S3, MinioUser, statement

from .conftest import Mark, NoPace
from .exported import (
    PLANTED,
    Exported,
    export_all,
    find_objects,
    plant,
    read_bucket,
    read_job,
    request_all,
    run_service,
    run_until_killed,
    sign_in_as,
    wait_for,
)
from .stored import NOW, StoppedAt, Stored, Storing, ago, make_leader
from .test_erasures import request_by_ids


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


async def test_what_a_policy_takes_with_whole_partitions_is_recorded(storing: Storing) -> None:
    model, old = await storing.begin(12, ago(days=200))
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


COPIES = CopyLimits(blob=1_000_000, part=1_000_000)
_STORED = 12
_PARTS = 3
EXPORT_FAILPOINTS = [
    name for name in FAILPOINTS if name.startswith(("export.list", "export.write", "export.finish"))
]
REMOVAL_FAILPOINTS = [name for name in FAILPOINTS if name.startswith("export.remove")]
# In the middle of the lists, and of the parts.
KILLS = [
    *EXPORT_FAILPOINTS,
    "export.list.before:2",
    "export.write.after:2",
    "export.write.before:3",
]


async def store_inferences(storing: Storing) -> tuple[int, list[Stored]]:
    model = await storing.model()
    return model, await storing.inferences(model, _STORED, ago(hours=1))


async def store_and_request(storing: Storing) -> tuple[list[Stored], UUID]:
    model, stored = await store_inferences(storing)
    return stored, await request_all(storing, model)


async def write(
    storing: Storing, blobs: Blobs | None = None, *, most: int = _STORED, **more: Any
) -> None:
    """Write exports for a turn, in parts of at most so many inferences."""
    blobs = blobs or storing.blobs
    await write_exports(make_leader(storing.engine, blobs, export_part_inferences=most, **more))


@pytest.fixture
def environment(environment: dict[str, str]) -> dict[str, str]:
    """The environment of a retention process that writes small parts."""
    size = str(_STORED // _PARTS)
    return environment | {"INFERENCE_STORE_EXPORT_PART_INFERENCES": size}


async def check_written(storing: Storing, stored: list[Stored], id: UUID) -> None:
    """Every inference is in one part, each part is the only object of its number, and the manifest
    says the same."""
    async with storing.engine.connect() as connection:
        parts = await list_parts(connection, id)
        listed = [await read_members(connection, id, part.number) for part in parts]
    uids = [inference.uid for inference in stored]
    assert [uid for uids_of_part in listed for uid in uids_of_part] == uids
    assert [len(uids_of_part) for uids_of_part in listed] == [_STORED // _PARTS] * _PARTS
    contents = [check_part(storing, part) for part in parts]
    lines = [json.loads(line) for content in contents for line in content.splitlines()]
    assert [UUID(line["uid"]) for line in lines] == uids
    manifest = StorageKey(storing.bucket, f"exports/{id}/manifest.json")
    document = json.loads(storing.blobs.get(manifest, limit=100_000))
    hashes = [hashlib.sha256(content).hexdigest() for content in contents]
    assert [part["sha256"] for part in document["parts"]] == hashes
    assert len(find_objects(storing, f"exports/{id}/parts/")) == _PARTS


def check_part(storing: Storing, part: Part) -> bytes:
    """Return the bytes of a part, which are those that Postgres says."""
    assert part.storage_key is not None
    content = storing.blobs.get(parse_stored(part.storage_key), limit=1_000_000)
    assert (part.state, part.bytes) == ("written", len(content))
    assert part.sha256 == hashlib.sha256(content).digest()
    return content


@pytest.mark.kills
@chain_kills(KILLS)
async def test_a_kill_loses_nothing_and_doubles_nothing(
    storing: Storing, environment: dict[str, str], tmp_path: Path, kills: KillChain
) -> None:
    model, stored = await store_inferences(storing)
    exports = []
    for kill in kills:
        exports.append(await request_all(storing, model))
        await run_until_killed(kills, kill, environment, tmp_path)
    async with run_service(environment, tmp_path):
        done = [await wait_for(storing, id, "done") for id in exports]
    for job in done:
        counts = (job.members, job.lists, job.written, job.rows, job.gone)
        assert counts == (_STORED, _PARTS, _PARTS, _STORED, 0)
        await check_written(storing, stored, job.id)


@pytest.mark.kills
@chain_kills(REMOVAL_FAILPOINTS)
async def test_a_kill_leaves_nothing_of_a_cancelled_export(
    storing: Storing, environment: dict[str, str], tmp_path: Path, kills: KillChain
) -> None:
    model, _ = await store_inferences(storing)
    exports = [await request_all(storing, model) for _ in kills.failpoints]
    await write(storing, most=_STORED // _PARTS)
    for id, kill in zip(exports, kills, strict=True):
        assert (await read_job(storing, id)).state == "done"
        await storing.transact(partial(move_job, id=id, state="cancelling"))
        await run_until_killed(kills, kill, environment, tmp_path)
    async with run_service(environment, tmp_path):
        for id in exports:
            await wait_for(storing, id, "cancelled")
    assert find_objects(storing, "exports/") == []


async def test_a_bucket_that_refuses_is_named_and_it_goes_on_later(
    storing: Storing, settings: RetentionSettings, minio_server: S3
) -> None:
    model, stored = await store_inferences(storing)
    user, bucket = MinioUser(minio_server, unique()), storing.bucket
    everything = statement("Allow", ["*"], bucket, f"{bucket}/*")
    for action, where, state in (
        ("PutObject", "exports/{}/parts/*", "writing"),
        ("GetObject", "*", "listing"),  # of a blob that is to be copied
    ):
        id = await request_all(storing, model, blobs="copy")
        user.may(everything, statement("Deny", [action], f"{bucket}/{where.format(id)}"))
        with Blobs(sign_in_as(user, settings)) as refused:
            await write(storing, refused, most=_STORED // _PARTS)
            waiting = await read_job(storing, id)
            assert (waiting.state, waiting.retry_at is not None) == (state, True), action
            assert "AccessDenied" in str(waiting.error)
            assert find_objects(storing, f"exports/{id}/parts/") == []
            user.may(everything)
            await storing.execute(text("UPDATE export_job SET retry_at = now()"))
            await write(storing, refused, most=_STORED // _PARTS)
        done = await read_job(storing, id)
        assert (done.state, done.error, done.retry_at, done.missing) == ("done", None, None, 0)
        await check_written(storing, stored, id)


async def test_a_stop_amid_a_part_leaves_nothing_of_it_and_the_next_one_writes_it(
    storing: Storing,
) -> None:
    model, stored = await store_inferences(storing)
    large = bytes(3_000_000)  # so that each inference is a batch of its own
    for inference in stored:
        storing.blobs.put(inference.objects[0], large, content_type="image/png")
    id = await request_all(storing, model, blobs="copy")
    limits: dict[str, Any] = {"export_blob_bytes": 10_000_000, "export_part_bytes": 13_000_000}
    # begun, listed, the part begun, its first batch, its second
    stopping = StoppedAt(5)
    with pytest.raises(Stopped):
        await write(storing, check=stopping, **limits)
    assert (await read_job(storing, id)).state == "writing"
    assert find_objects(storing, f"exports/{id}/parts/") == []
    await write(storing, check=stopping, **limits)
    done = await read_job(storing, id)
    assert (done.state, done.rows, done.written) == ("done", _STORED, 3)
    assert len(find_objects(storing, f"exports/{id}/parts/")) == 3


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
        if fails:
            with pytest.raises(Killed):
                await write(storing, frozen)
        else:
            await write(storing, frozen)
    assert frozen.part.key not in await list_keys(storing.blobs, id)
    assert stored[0].uid.bytes not in read_bucket(storing)
    assert str(stored[0].uid).encode() not in read_bucket(storing)


async def test_what_it_leaves_when_it_is_killed_is_deleted_by_the_new_leader(
    storing: Storing, settings: RetentionSettings
) -> None:
    stored, id = await store_and_request(storing)
    leader = make_leader(storing.engine, storing.blobs)
    planted = str(stored[0].uid).encode()

    async def take_over() -> None:
        await remember_parts(leader)
        await storing.erase(stored[0])

    with FrozenBlobs(settings) as frozen:
        frozen.loop, frozen.meanwhile = asyncio.get_running_loop(), take_over
        await write(storing, frozen)
    storing.blobs.put(frozen.part, planted, content_type="application/x-ndjson")
    assert planted in read_bucket(storing)
    assert has_taken_over(leader)
    await delete_taken_over(leader)
    assert planted not in read_bucket(storing)
    assert await list_keys(storing.blobs, id) == []
    assert (await read_job(storing, id)).state == "stale"


class Frozen(NoPace):
    """Leads until a confirmation, and then again."""

    def __init__(self, until: int) -> None:
        self.until = until

    async def confirm_leading(self) -> None:
        self.until -= 1
        if self.until == 0:
            raise Killed


async def test_a_list_that_it_makes_too_late_is_not_stored(storing: Storing) -> None:
    _, id = await store_and_request(storing)
    frozen = Frozen(1)
    with pytest.raises(Killed):
        await write(storing, check=frozen)
    assert await storing.transact(read_members, id, 1) == []
    await write(storing, check=frozen)
    assert len(await list_keys(storing.blobs, id)) == 1


async def test_a_part_that_is_still_named_stays(
    storing: Storing, settings: RetentionSettings
) -> None:
    _, id = await store_and_request(storing)
    leader = make_leader(storing.engine, storing.blobs)
    assert not has_taken_over(leader)
    with FrozenBlobs(settings) as frozen:
        frozen.loop, frozen.meanwhile = asyncio.get_running_loop(), partial(remember_parts, leader)
        await write(storing, frozen)
    await delete_taken_over(leader)
    assert await list_keys(storing.blobs, id) == [frozen.part.key]
