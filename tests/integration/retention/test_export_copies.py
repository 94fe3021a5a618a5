"""Exports with copies of blobs: `kill -9` amid a part, a bucket that gives none, and erasures."""

from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import text

from inference_store.erasure.policies import ErasureScope
from inference_store.export.jobs.blob_copies import CopyLimits
from inference_store.export.jobs.members import list_parts
from inference_store.export.part_formats import PART_FORMATS
from inference_store.objects import Blobs
from inference_store.platform.settings import RetentionSettings
from inference_store.retention.export_worker import ExportWorker
from inference_store.retention.leadership_check import Stopped
from tests.kill_chain import KillChain, chain_kills
from tests.servers.fixtures import unique
from tests.servers.minio import S3
from tests.servers.minio_user import MinioUser, statement

from .conftest import NoPace
from .part_reading import read_versions
from .requested_exports import (
    find_objects,
    read_job,
    request_all,
    run_service,
    run_until_killed,
    sign_in_as,
    wait_for,
)
from .stored import Stored, Storing, ago

_STORED, _BYTES = 12, 3_000_000
_LIMITS = CopyLimits(blob=10_000_000, part=13_000_000)
"""So that four inferences are in a part, each in a batch of its own."""
_PLANTED = b"planted-9b1f"
COPYING = [format.name for format in PART_FORMATS.values() if format.copied]


async def store(storing: Storing, data_bytes: int = _BYTES) -> list[Stored]:
    """Store inferences with inputs of so many bytes, and a planted value in each blob."""
    stored = await storing.inferences(await storing.model(), _STORED, ago(hours=1))
    for number, each in enumerate(stored):
        sizes = {b"data": data_bytes, b"response": 1}
        for key, (kind, size) in zip(each.keys[:2], sizes.items(), strict=True):
            assert key is not None
            content = plant(number, kind) + bytes(size)
            storing.blobs.put(key, content, content_type="application/octet-stream")
    return stored


def plant(number: int, kind: bytes) -> bytes:
    """The value that is in a blob."""
    return b"%s-%s-%d-" % (_PLANTED, kind, number)


async def request_copies(storing: Storing, model: int, format: str) -> UUID:
    """Request an export of all with copies."""
    return await request_all(storing, model, format, include=["metadata"], blobs="copy")


def make_worker(storing: Storing, blobs: Blobs) -> ExportWorker:
    return ExportWorker(storing.engine, blobs, NoPace(), most=_STORED, copies=_LIMITS)


async def read_hashes(storing: Storing, id: UUID) -> list[tuple[int | None, Any]]:
    """Return the rows and the SHA-256 of each part."""
    return [(part.rows, part.sha256) for part in await storing.transact(list_parts, id)]


AMID = {
    "export.list.after:2": "parquet",
    "export.write.batch:3": "arrow",
    "export.write.batch:2": "jsonl",
    "export.write.after:2": "webdataset",
}


@pytest.mark.kills
@chain_kills(list(AMID))
async def test_a_kill_amid_copies_gives_the_same_hashes(
    storing: Storing, environment: dict[str, str], tmp_path: Path, kills: KillChain
) -> None:
    model, worker = (await store(storing))[0].model, make_worker(storing, storing.blobs)
    limits = {
        "INFERENCE_STORE_EXPORT_PART_BYTES": str(_LIMITS.part),
        "INFERENCE_STORE_EXPORT_BLOB_BYTES": str(_LIMITS.blob),
    }
    for kill in kills:
        undisturbed = await request_copies(storing, model, AMID[kill])
        await worker.run_turn()
        assert (await read_job(storing, undisturbed)).state == "done"
        id = await request_copies(storing, model, AMID[kill])
        await run_until_killed(kills, kill, environment | limits, tmp_path)
        async with run_service(environment | limits, tmp_path):
            job = await wait_for(storing, id, "done")
        assert (job.rows, job.lists, job.missing) == (_STORED, 3, 0)
        assert await read_hashes(storing, id) == await read_hashes(storing, undisturbed)


class TestErasures:
    """In a bucket of either kind."""

    @pytest.fixture(params=["plain", "versioned"])
    def bucket(self, request: pytest.FixtureRequest, minio_server: S3) -> str:
        """A bucket, which may keep versions."""
        if request.param == "versioned" and not minio_server.real:
            pytest.skip("needs a real MinIO")
        return minio_server.create_bucket(unique(), object_lock=request.param == "versioned")

    @pytest.mark.long
    async def test_what_is_erased_is_in_no_byte_of_the_bucket(self, storing: Storing) -> None:
        """Of an input and a response: test_exports_planted.py erases inferences."""
        stored = await store(storing, 1000)
        exports = [await request_copies(storing, stored[0].model, format) for format in COPYING]
        worker = make_worker(storing, storing.blobs)
        await worker.run_turn()
        scopes: dict[ErasureScope, tuple[int, bytes]] = {
            "input": (5, b"data"),
            "response": (6, b"response"),
        }
        assert len(find(storing.blobs, plant(5, b"data"))) == 1 + len(COPYING)
        for scope, (number, kind) in scopes.items():
            await storing.erase(stored[number], scope=scope)
            for _ in range(2):  # before the parts are written again, and afterwards
                assert find(storing.blobs, plant(number, kind)) == set(), scope
                await worker.run_turn()
        for format, export in zip(COPYING, exports, strict=True):
            job = await read_job(storing, export)
            missing = 1 if format == "webdataset" else 2  # it has no responses
            counts = (job.state, job.rows, job.gone, job.missing)
            assert counts == ("done", _STORED, 0, missing), format
        for number in (4, 6):
            assert len(find(storing.blobs, plant(number, b"data"))) == 1 + len(COPYING)


def find(blobs: Blobs, value: bytes) -> set[str]:
    """Return the keys of which some version holds a value."""
    return {name for name, content in read_versions(blobs) if value in content}


async def test_a_bucket_that_gives_no_blob_makes_it_wait(
    storing: Storing, settings: RetentionSettings, minio_server: S3
) -> None:
    model = (await store(storing))[0].model
    id = await request_copies(storing, model, "arrow")
    user, bucket = MinioUser(minio_server, unique()), storing.bucket
    everything = statement("Allow", ["*"], bucket, f"{bucket}/*")
    denied = statement("Deny", ["GetObject"], f"{bucket}/*")
    user.may(everything, denied)
    with Blobs(sign_in_as(user, settings)) as refused:
        worker = make_worker(storing, refused)
        await worker.run_turn()
        waiting = await read_job(storing, id)
        assert (waiting.state, waiting.members) == ("listing", 0)
        assert "AccessDenied" in str(waiting.error)
        user.may(everything)
        await storing.execute(text("UPDATE export_job SET retry_at = now()"))
        await worker.run_turn()
    done = await read_job(storing, id)
    assert (done.state, done.rows, done.missing) == ("done", _STORED, 0)


class StoppedAt(NoPace):
    """Is asked to stop before the step or the batch of this number."""

    def __init__(self, number: int) -> None:
        self.number = number

    async def confirm_step(self) -> None:
        self.number -= 1
        if self.number == 0:
            raise Stopped


async def test_a_stop_amid_a_part_leaves_nothing_of_it_and_the_next_one_writes_it(
    storing: Storing,
) -> None:
    model = (await store(storing))[0].model
    id = await request_copies(storing, model, "jsonl")
    # begun, listed, the part begun, its first batch, its second
    stopped = ExportWorker(
        storing.engine, storing.blobs, StoppedAt(5), most=_STORED, copies=_LIMITS
    )
    with pytest.raises(Stopped):
        await stopped.run_turn()
    assert (await read_job(storing, id)).state == "writing"
    assert find_objects(storing, f"exports/{id}/parts/") == []
    await make_worker(storing, storing.blobs).run_turn()
    done = await read_job(storing, id)
    assert (done.state, done.rows, done.written) == ("done", _STORED, 3)
    assert len(find_objects(storing, f"exports/{id}/parts/")) == 3
