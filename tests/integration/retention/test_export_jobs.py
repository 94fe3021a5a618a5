"""Exports by a real retention process: killed, refused by the bucket, and overtaken."""

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO
from uuid import UUID

import pytest
from sqlalchemy import text

from inference_store.export.jobs import Part, list_parts, read_members, request_removal
from inference_store.export.part_formats import CopyLimits
from inference_store.inference.events import StorageKey, parse_stored
from inference_store.objects import Blobs
from inference_store.platform.failpoints import FAILPOINTS
from inference_store.platform.settings import RetentionSettings
from inference_store.retention.exporter import write_exports
from inference_store.retention.leader import Stopped
from inference_store.retention.work import delete_taken_over, has_taken_over, remember_parts
from tests.kill_chain import KillChain, chain_kills
from tests.servers.fixtures import unique
from tests.servers.minio import S3, MinioUser, statement

from .conftest import NoPace
from .exported import (
    find_objects,
    read_bucket,
    read_job,
    request_all,
    run_service,
    run_until_killed,
    sign_in_as,
    wait_for,
)
from .stored import StoppedAt, Stored, Storing, ago, make_leader

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
        await storing.transact(request_removal, id)
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
