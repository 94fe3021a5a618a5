"""The contract that every S3 server must fulfil."""

import asyncio
import gzip
import json
import socket
import tarfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from io import BytesIO
from tempfile import TemporaryFile
from urllib.request import urlopen

import pytest

from inference_store.inference.errors import BlobMissing, BlobTooLarge, ObjectStoreUnavailable
from inference_store.inference.events import StorageKey
from inference_store.objects import Blobs, LockedObject, Rewrite
from inference_store.objects.listing import inventory
from tests.producer import capture, pack
from tests.servers.fixtures import unique
from tests.servers.minio import S3

from .conftest import make_blob_settings

TEXT = "text/plain"


async def test_gets_and_streams_what_was_put_up_to_a_size(blobs: Blobs) -> None:
    key = blobs.parse("a/b")
    blobs.put(key, b"hello", content_type=TEXT)
    assert blobs.get(key, limit=5) == b"hello"
    assert blobs.head(key) == 5
    key = blobs.parse("empty")
    blobs.put(key, b"", content_type=TEXT)
    assert blobs.get(key, limit=1) == b""
    assert blobs.get_many([key], limit=1) == [b""]
    key = blobs.parse("large")
    blobs.put(key, b"x" * 1000, content_type=TEXT)
    with pytest.raises(BlobTooLarge, match="1000 bytes; at most 999"):
        blobs.get(key, limit=999)
    key = blobs.parse("picture")
    blobs.put(key, b"x" * 1_000_000, content_type="image/png")
    stream = await blobs.stream(key)
    assert (stream.size, stream.content_type) == (1_000_000, "image/png")
    assert sum([len(piece) async for piece in stream.pieces]) == 1_000_000
    with pytest.raises(BlobMissing):
        await blobs.stream(blobs.parse("nothing"))


def test_link_can_be_opened_without_a_key(blobs: Blobs) -> None:
    key = blobs.parse("a b/ü")
    blobs.put(key, b"linked", content_type=TEXT)
    with urlopen(blobs.presign(key, 60), timeout=60) as answer:
        assert answer.read() == b"linked"


def test_distinguishes_a_missing_object_from_a_missing_bucket(s3: S3, blobs: Blobs) -> None:
    with pytest.raises(BlobMissing):
        blobs.get(blobs.parse("nothing"), limit=1)
    with pytest.raises(BlobMissing):
        blobs.head(blobs.parse("nothing"))
    with Blobs(make_blob_settings(s3, "no-such-bucket")) as lost:
        key = lost.parse("nothing")
        with pytest.raises(ObjectStoreUnavailable):
            lost.get(key, limit=1)
        with pytest.raises(ObjectStoreUnavailable):
            lost.head(key)
        with pytest.raises(ObjectStoreUnavailable):
            lost.check()
    blobs.check()


def test_a_file_is_written_by_one_request(s3: S3, blobs: Blobs) -> None:
    for size in (0, 1, 12_000_000):
        key, content = blobs.parse("file"), b"planted" * (size // 7) + b"x" * (size % 7)
        with TemporaryFile() as file:
            file.write(content)
            blobs.put_file(key, file, content_type=TEXT)
        assert blobs.get(key, limit=size or 1) == content
        # the tag of an upload in pieces ends with their number
        assert "-" not in str(s3.client().stat_object(key.bucket, key.key).etag), size


@pytest.mark.real_minio
def test_an_object_is_written_by_one_request(minio_server: S3) -> None:
    with Blobs(make_blob_settings(minio_server, minio_server.create_bucket(unique()))) as blobs:
        for name in ("plain", "odd\x01"):
            key = blobs.parse(name)
            blobs.put(key, b"x" * 12_000_000, content_type=TEXT)
            assert "-" not in str(minio_server.client().stat_object(key.bucket, key.key).etag)


def test_keys_are_taken_as_they_are_written(blobs: Blobs, s3: S3) -> None:
    for name in ("per%20cent", "ü 😀", "q?x#y&z", "plus+x", "(a)'b'", "a\\b"):
        key = blobs.parse(name)
        blobs.put(key, b"found", content_type=TEXT)
        assert blobs.get(key, limit=10) == b"found", name
        assert [item.object_name for item in s3.client().list_objects(key.bucket)] == [name]
        assert blobs.still_there([key]) == [key], name
        assert blobs.delete_objects([key]) == [], name
        assert blobs.still_there([key]) == [], name
        with pytest.raises(BlobMissing):
            blobs.get(key, limit=10)


def test_deleting_is_verified_repeatable_and_of_that_name_alone(blobs: Blobs) -> None:
    keys = [blobs.parse(f"delete/{number:04}") for number in range(30)]
    for key in keys:
        blobs.put(key, b"x", content_type=TEXT)
    doomed, remaining = keys[::2], keys[1::2]
    assert blobs.delete_objects(doomed) == []
    assert blobs.still_there(keys) == remaining
    assert blobs.delete_objects(doomed) == []
    assert blobs.delete_objects(keys) == []
    assert blobs.still_there(keys) == []
    blobs.put(blobs.parse("abc"), b"x", content_type=TEXT)
    blobs.put(blobs.parse("abd/e"), b"x", content_type=TEXT)
    assert blobs.still_there([blobs.parse("ab"), blobs.parse("abd")]) == []


def test_a_forbidden_bucket_or_a_wrong_secret_touches_nothing(s3: S3, blobs: Blobs) -> None:
    key = blobs.parse("kept")
    blobs.put(key, b"x", content_type=TEXT)
    with Blobs(make_blob_settings(s3, "another-bucket")) as stranger:
        faults = stranger.delete_objects([key])
        assert [fault.code for fault in faults] == ["BucketNotAllowed"]
        assert stranger.still_there([key]) == [key]
    assert blobs.get(key, limit=1) == b"x"
    key = blobs.parse("a")
    blobs.put(key, b"x", content_type=TEXT)
    with (
        Blobs(make_blob_settings(s3, key.bucket, s3_secret_key="no-such-secret")) as locked_out,
        pytest.raises(ObjectStoreUnavailable) as refused,
    ):
        locked_out.get(key, limit=1)
    assert "no-such-secret" not in str(refused.value)


def test_unavailable_server_fails_quickly(s3: S3) -> None:
    gone = make_blob_settings(
        s3, "any-bucket", s3_endpoint="http://127.0.0.1:1", s3_timeout_seconds=300
    )
    with Blobs(gone) as blobs:
        key = blobs.parse("a")
        for ask in (
            lambda: blobs.get(key, limit=1),
            lambda: blobs.get_many([key], limit=1),
            lambda: blobs.put(key, b"", content_type=TEXT),
            lambda: blobs.delete_objects([key]),
            lambda: blobs.still_there([key]),
            blobs.check,
        ):
            with pytest.raises(ObjectStoreUnavailable):
                ask()


def test_lists_versions_without_versioning(s3: S3) -> None:
    bucket = s3.create_bucket(unique())
    settings = make_blob_settings(s3, bucket)
    key = StorageKey(bucket, "a/head")
    written = LockedObject(settings, key)
    assert list(written.versions(limit=10)) == []
    for data in (b"one", b"two"):
        until = datetime.now(UTC) + timedelta(days=1)
        assert not written.put(data, content_type="text/plain", until=until)
    assert list(written.versions(limit=10)) == [b"two"]
    assert not written.is_locked()
    assert [entry.key for entry in inventory(settings)] == [key]


BOMB = gzip.compress(b"\0" * 20_000_000)


@pytest.mark.real_minio
async def test_nothing_is_unpacked(minio_server: S3) -> None:
    bucket, client = minio_server.create_bucket(unique()), minio_server.client()
    encoding: dict[str, str | list[str] | tuple[str]] = {"Content-Encoding": "gzip"}
    with Blobs(make_blob_settings(minio_server, bucket)) as blobs:
        for name in ("plain", "a\tb"):  # the other client sends the second one
            client.put_object(bucket, name, BytesIO(BOMB), len(BOMB), metadata=encoding)
            key = blobs.parse(name)
            assert blobs.get(key, limit=len(BOMB)) == BOMB
            stream = await blobs.stream(key)
            assert b"".join([piece async for piece in stream.pieces]) == BOMB
            assert stream.size == len(BOMB)
            with pytest.raises(BlobTooLarge):
                blobs.get(key, limit=len(BOMB) - 1)


# An S3 that keeps connections and says nothing, as a frozen process does.

_CALLS = 12


@pytest.mark.parametrize("client", ["obstore", "minio"])
def test_what_waits_behind_a_silence_is_refused_without_asking(client: str) -> None:
    """Two threads wait for one time-out each; the others wait no longer than that."""
    with socket.create_server(("127.0.0.1", 0), backlog=2 * _CALLS) as silent:
        silent.setblocking(False)
        server = S3(f"http://127.0.0.1:{silent.getsockname()[1]}", "key", "secret")
        settings = make_blob_settings(server, "bucket", s3_timeout_seconds=1)
        with Blobs(settings) as blobs, ThreadPoolExecutor(2) as threads:
            key = blobs.parse("a")
            ask = blobs.head if client == "minio" else lambda key: blobs.get(key, limit=1)
            calls = [threads.submit(ask, key) for _ in range(_CALLS)]
            assert {type(call.exception()) for call in calls} == {ObjectStoreUnavailable}
            with pytest.raises(ObjectStoreUnavailable):
                asyncio.run(blobs.stream(key))
        asked = 0
        with suppress(BlockingIOError):
            while True:
                silent.accept()[0].close()
                asked += 1
        assert asked < _CALLS


def test_entries_of_a_segment_are_overwritten_in_place(blobs: Blobs) -> None:
    """With conditional writes or without: what others have written meanwhile is read again."""
    packed = pack(*(capture(number) for number in range(3)))
    place = StorageKey(blobs.buckets.default, packed.key)
    ids = [json.loads(event)["capture_id"] for event in packed.events]
    blobs.put(place, packed.tar, content_type="application/x-tar")
    known = frozenset({sha256(packed.tar).hexdigest()})
    for number in range(2):
        name = {f"{ids[number]}.data": None}
        rewrite = Rewrite(place, names=name, hashes=known, sizes=frozenset({len(packed.tar)}))
        [read] = blobs.read_segments([rewrite])
        assert (read.fault, read.bytes) == (None, len(b"datum 0"))
        blobs.write_segments([read])
        assert read.fault is None
        known |= {read.next_hash}
    tar = blobs.get(place, limit=10**6)
    assert len(tar) == len(packed.tar)
    assert [b"datum %d" % number in tar for number in range(3)] == [False, False, True]
    with tarfile.open(fileobj=BytesIO(tar)) as opened:
        assert opened.getnames().count("erased") == 2
    # the rest goes with the object
    [read] = blobs.read_segments([replace(rewrite, ordinals=frozenset(range(3)), hashes=known)])
    blobs.write_segments([read])
    assert (read.fault, read.is_empty, blobs.exists(place)) == (None, True, False)
    [read] = blobs.read_segments([rewrite])
    assert (read.fault, read.is_gone) == (None, True)
