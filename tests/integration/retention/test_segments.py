"""Erasing inferences whose blobs lie in segments: whole ones go, others stay, overwritten."""

import tarfile
from collections.abc import Sequence
from io import BytesIO

import pytest
from minio.commonconfig import ENABLED
from minio.versioningconfig import VersioningConfig
from sqlalchemy import select

from inference_store.index.tables import inference, segment
from inference_store.inference.errors import BlobMissing
from inference_store.inference.events import StorageKey
from inference_store.inference.layout import edited_key
from inference_store.objects import Blobs, Overwritten, Rewrite
from inference_store.platform.settings import RetentionSettings
from tests.servers.minio import S3

from .stored import Stored, Storing, ago

pytestmark = pytest.mark.real_minio


def find_place(stored: Stored) -> StorageKey:
    """Return the segment that holds an inference."""
    key = stored.objects[0]
    return StorageKey(key.bucket, key.key.partition("#")[0])


def read_versions(server: S3, bucket: str) -> dict[str, list[bytes]]:
    """Return the bytes of every version of every object but the ledger's, by name."""
    client, found = server.client(), dict[str, list[bytes]]()
    for listed in client.list_objects(bucket, recursive=True, include_version=True):
        name = str(listed.object_name)
        if not name.startswith(("ledger/", "certificates/")) and not listed.is_delete_marker:
            answer = client.get_object(bucket, name, version_id=listed.version_id)
            found.setdefault(name, []).append(answer.read())
            answer.close()
    return found


def count_with(server: S3, bucket: str, value: bytes) -> int:
    versions = read_versions(server, bucket).values()
    return sum(value in data for datas in versions for data in datas)


def list_names(tar: bytes) -> list[str]:
    with tarfile.open(fileobj=BytesIO(tar)) as opened:
        return [member.name.partition(".")[2] or member.name for member in opened]


class Counting(Blobs):
    """Counts the segments that are read."""

    reads = 0

    def read_segments(self, rewrites: Sequence[Rewrite]) -> list[Overwritten]:
        self.reads += len(rewrites)
        return super().read_segments(rewrites)


@pytest.mark.parametrize("versions", [False, True])
async def test_what_is_erased_is_overwritten_and_its_neighbours_stay(
    storing: Storing, minio_server: S3, versions: bool
) -> None:
    if versions:
        config = VersioningConfig(ENABLED)
        minio_server.client().set_bucket_versioning(storing.bucket, config)
    model = await storing.model()
    first, second, third, fourth = those = await storing.packed(model, 4, ago(days=1))
    before = {key: storing.blobs.get(key, limit=10_000) for each in those for key in each.objects}
    place = find_place(first)
    await storing.erase(first)
    await storing.erase(second, scope="input")
    await storing.erase(third, scope="response")
    [tar] = read_versions(minio_server, storing.bucket)[place.key]
    kept = [*(second.objects[1:2]), *third.objects[::2], *fourth.objects]
    assert {key: storing.blobs.get(key, limit=10_000) for key in kept} == {
        key: before[key] for key in kept
    }
    for key in before.keys() - set(kept):
        with pytest.raises(BlobMissing):
            storing.blobs.get(key, limit=10_000)
        offset, length = map(int, key.key.partition("#")[2].split("+"))
        assert tar[offset : offset + length] == bytes(length)
    assert list_names(tar).count("erased") == 3 + 2 + 1
    assert [count_with(minio_server, storing.bucket, b"datum %d" % n) for n in range(4)] == [
        *(0, 0, 1, 1)
    ]
    # the metadata without the request lie beside the segment now
    moved = StorageKey(storing.bucket, edited_key("model", second.uid))
    rows = await storing.fetch(
        select(inference.c.metadata_storage_key).where(inference.c.uid == second.uid)
    )
    assert rows == [str(moved)]
    assert b"frame_number" in (rest := storing.blobs.get(moved, limit=10_000))
    assert b'"request"' not in rest
    [row] = await storing.fetch(select(segment))
    assert [(span.lower, span.upper) for span in row.erased] == [(0, 1)]
    assert row.leased_by is None
    # the last ones take the object along
    erasure = await storing.erase(second, third, fourth)
    assert (await storing.reload(erasure)).inferences == 3
    assert read_versions(minio_server, storing.bucket) == {}
    assert storing.objects() == set()
    assert await storing.rows() == {}
    assert await storing.fetch(select(segment)) == []


async def test_a_policy_deletes_whole_segments_and_reads_none(
    storing: Storing, settings: RetentionSettings
) -> None:
    model = await storing.model()
    # two proxies at a time, and batches of ten that end amid segments
    for hour in range(3):
        for proxy in range(2):
            at = ago(days=9, hours=hour, seconds=proxy * 0.5)
            await storing.packed(model, 7, at)
    (young,) = await storing.packed(model, 1, ago(hours=1))
    loose = await storing.inferences(model, 5, ago(days=9))
    await storing.keep(model, inference="P1D")
    with Counting(settings) as blobs:
        run = await storing.retain(using=blobs)
        assert (run.state, run.inferences_deleted) == ("done", 42 + len(loose))
        assert blobs.reads == 0
    assert storing.objects() == {find_place(young).key}
    assert await storing.stored() == {young.uid}
    assert len(await storing.fetch(select(segment))) == 1


async def test_a_batch_rewrites_each_segment_once(
    storing: Storing, settings: RetentionSettings, minio_server: S3
) -> None:
    model = await storing.model()
    segments = [await storing.packed(model, 6, ago(days=1, hours=hour)) for hour in range(3)]
    doomed = [stored for those in segments for stored in those[:4]]
    with Counting(settings) as blobs:
        erasure = await storing.request(*doomed)
        assert await storing.make_eraser(blobs).finish(erasure) == "deleted"
        assert blobs.reads == 3
    assert await storing.stored() == {each.uid for those in segments for each in those[4:]}
    done = await storing.reload(erasure)
    assert (done.inferences, done.objects) == (12, 36)
    assert count_with(minio_server, storing.bucket, b"datum 3") == 0
    assert count_with(minio_server, storing.bucket, b"datum 4") == 3
