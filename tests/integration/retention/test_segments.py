"""Erasing inferences whose blobs lie in segments: whole ones go, others stay, overwritten."""

import asyncio
import tarfile
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from io import BytesIO
from uuid import uuid4

import pytest
from minio.commonconfig import ENABLED
from minio.versioningconfig import VersioningConfig
from sqlalchemy import func, select

from inference_store.erasure import batches, segment_claims
from inference_store.erasure.log import new_key
from inference_store.erasure.pending_deletions import Arrival, enqueue_arrivals
from inference_store.erasure.progress import list_blocked, list_unfinished
from inference_store.erasure.proofs import Recheck
from inference_store.index.tables import PARTITIONED, inference, segment
from inference_store.inference.errors import BlobMissing, ObjectStoreUnavailable
from inference_store.inference.events import StorageKey
from inference_store.inference.layout import edited_key, packed_capture_id, segment_of_key
from inference_store.objects import Blobs, Overwritten, Rewrite
from inference_store.objects.listing import inventory
from inference_store.platform.settings import RetentionSettings
from tests.integration.backups import Backup, Restore
from tests.integration.erasure_requests import request_erasure
from tests.servers.minio import S3

from .stored import Stored, Storing, ago
from .stranger import Stranger

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


async def test_a_hold_keeps_its_member_or_lists_that_it_was_claimed(
    storing: Storing, settings: RetentionSettings, minio_server: S3
) -> None:
    model = await storing.model()
    held, claimed, free = await storing.packed(model, 3, ago(days=1))
    await storing.hold(model, None, held.uid)
    loop, answers = asyncio.get_running_loop(), []

    class Amid(Blobs):
        """Places a hold when a segment was read, and is about to be written."""

        def read_segments(self, rewrites: Sequence[Rewrite]) -> list[Overwritten]:
            read = super().read_segments(rewrites)
            placing = storing.hold(model, None, claimed.uid, held.uid)
            answers.append(asyncio.run_coroutine_threadsafe(placing, loop).result(180))
            return read

    erasure = await storing.request(held, claimed, free)
    with Amid(settings) as blobs:
        assert await storing.make_eraser(blobs).finish(erasure) == "partly_held"
    [placement] = answers
    assert {claim.uid for claim in placement.claimed} == {claimed.uid}
    assert await storing.stored() == {held.uid}
    assert storing.blobs.get(held.objects[0], limit=100) == b"datum 0"
    assert [count_with(minio_server, storing.bucket, b"datum %d" % n) for n in (1, 2)] == [0, 0]
    assert set(read_versions(minio_server, storing.bucket)) == {find_place(held).key}


async def test_one_eraser_at_a_time_works_on_a_segment(
    storing: Storing, settings: RetentionSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment_claims, "LEASE_SECONDS", 0.5)
    model = await storing.model()
    first, second = await storing.packed(model, 2, ago(days=1))
    (loose,) = await storing.inferences(model, 1, ago(days=1))
    other = {"leased_by": uuid4(), "leased_until": datetime.now(UTC) + timedelta(hours=1)}
    await storing.execute(segment.update().values(other))
    erasure = await storing.request(first, loose)
    assert await storing.eraser.finish(erasure) == "failed"
    [obstacle] = await storing.transact(list_blocked, erasure.id)
    assert (obstacle.storage_key, obstacle.code) == (str(find_place(first)), segment_claims.LEASED)
    assert "another retention service is at work on it" in obstacle.message
    assert (await storing.reload(erasure)).retry_at is not None
    assert await storing.stored() == {first.uid, second.uid}
    # one that is gone leaves its lease: it is waited for
    lapses = datetime.now(UTC) + timedelta(seconds=0.3)
    await storing.execute(segment.update().values(leased_until=lapses))
    assert await storing.eraser.finish(await storing.reload(erasure)) == "deleted"
    assert await storing.transact(list_blocked, erasure.id) == []

    class TakenOver(Blobs):
        """Another eraser takes the segment over while this one reads it."""

        def read_segments(self, rewrites: Sequence[Rewrite]) -> list[Overwritten]:
            read = super().read_segments(rewrites)
            taking = storing.execute(segment.update().values(other))
            asyncio.run_coroutine_threadsafe(taking, loop).result(180)
            return read

    loop = asyncio.get_running_loop()
    (third, _) = await storing.packed(model, 2, ago(days=1))
    before = storing.blobs.get(third.objects[0], limit=100)
    erasure = await storing.request(third)
    with TakenOver(settings) as blobs:
        assert await storing.make_eraser(blobs).finish(erasure) == "failed"
    assert storing.blobs.get(third.objects[0], limit=100) == before


async def test_an_old_eraser_that_writes_late_brings_nothing_back(
    storing: Storing, settings: RetentionSettings, minio_server: S3
) -> None:
    model = await storing.model()
    first, second, _ = await storing.packed(model, 3, ago(days=1))

    class Slow(Blobs):
        """Writes what it has read after another eraser has overwritten more."""

        def write_segments(self, segments: Sequence[Overwritten]) -> None:
            if not late:
                late.append(True)
                place = find_place(first)
                [other] = self.read_segments([Rewrite(place, names=names)])
                noting = storing.execute(segment.update().values(next_hash=other.next_hash))
                asyncio.run_coroutine_threadsafe(noting, loop).result(180)
                super().write_segments([other])
            super().write_segments(segments)

    late: list[bool] = []
    loop = asyncio.get_running_loop()
    [capture] = await storing.fetch(
        select(inference.c.capture_id).where(inference.c.uid == second.uid)
    )
    names = {f"{capture}.data": None}
    erasure = await storing.request(first)
    with Slow(settings) as blobs:
        assert await storing.make_eraser(blobs).finish(erasure) == "deleted"
    assert [count_with(minio_server, storing.bucket, b"datum %d" % n) for n in range(3)] == [
        0,
        0,
        1,
    ]


async def test_a_segment_that_a_stranger_changed_is_left_alone(storing: Storing) -> None:
    model = await storing.model()
    first, second = await storing.packed(model, 2, ago(days=1))
    place = find_place(first)
    client, tar = storing.blobs._minio, storing.blobs._minio.get_object(storing.bucket, place.key)
    written = tar.read()
    changed = written.replace(b"datum 1", b"DATUM 1")
    client.put_object(storing.bucket, place.key, BytesIO(changed), len(changed))
    erasure = await storing.request(first)
    assert await storing.eraser.finish(erasure) == "failed"
    [obstacle] = await storing.transact(list_blocked, erasure.id)
    assert (obstacle.storage_key, obstacle.code) == (str(place), "SegmentChanged")
    assert "put back what the store wrote last" in obstacle.message
    assert client.get_object(storing.bucket, place.key).read() == changed
    assert await storing.stored() == {first.uid, second.uid}
    longer = written + written
    client.put_object(storing.bucket, place.key, BytesIO(longer), len(longer))
    assert await storing.eraser.finish(await storing.reload(erasure)) == "failed"
    [obstacle] = await storing.transact(list_blocked, erasure.id)
    assert f"it has {len(longer)} bytes, which it never had" in obstacle.message
    client.put_object(storing.bucket, place.key, BytesIO(written), len(written))
    assert await storing.eraser.finish(await storing.reload(erasure)) == "deleted"
    # deleted by a stranger, it counts as gone
    client.remove_object(storing.bucket, place.key)
    await storing.erase(second)
    assert await storing.rows() == {}


async def test_a_stranger_that_names_a_member_takes_nothing_from_its_owner(
    storing: Storing, minio_server: S3
) -> None:
    model = await storing.model()
    owner, neighbour, last = await storing.packed(model, 3, ago(days=1))
    names = [key.key for key in owner.objects]
    stranger = await storing.foreign(model, ago(hours=1), *names, put=False)
    await storing.erase(stranger, scope="input")
    await storing.erase(stranger)
    assert storing.blobs.get(owner.objects[0], limit=100) == b"datum 0"
    # one that the owner leaves to it goes with it
    stranger = await storing.foreign(model, ago(hours=1), *names, put=False)
    await storing.erase(owner)
    assert storing.blobs.get(owner.objects[0], limit=100) == b"datum 0"
    await storing.erase(neighbour)
    assert count_with(minio_server, storing.bucket, b"datum 1") == 0
    assert storing.blobs.get(owner.objects[0], limit=100) == b"datum 0"
    # also if that is of another model
    other = await storing.model("other")
    await storing.foreign(other, ago(hours=1), *names, put=False)
    await storing.erase(stranger)
    assert storing.blobs.get(owner.objects[0], limit=100) == b"datum 0"
    stored = await storing.fetch(select(inference).where(inference.c.model == other))
    await storing.transact(request_erasure, model=other, uids=[stored[0].uid])
    for queued in await storing.transact(list_unfinished, failed=False):
        assert await storing.eraser.finish(queued) == "deleted"
    assert count_with(minio_server, storing.bucket, b"datum 0") == 0
    assert len(await storing.fetch(select(segment))) == 1
    # nor does one that names another's member with a capture's id of the same segment
    forged = await storing.packed(model, 2, ago(days=1))
    taken, thief = forged[0].objects[0], forged[1]
    here = inference.c.uid == thief.uid
    await storing.execute(inference.update().where(here).values(data_storage_key=str(taken)))
    await storing.erase(thief)
    assert storing.blobs.get(taken, limit=100) == b"datum 0"
    assert await storing.stored() == {forged[0].uid, last.uid}


async def test_captures_that_an_event_invents_take_nothing(storing: Storing) -> None:
    """Their ids are of the segment, and their keys name places where nothing of them is."""
    model = await storing.model()
    owners = await storing.packed(model, 3, ago(days=1))
    place = find_place(owners[0])
    names = segment_of_key(place.key)
    assert names is not None
    for number, (owner, offset) in enumerate(zip(owners, (10**7, 512, 1024), strict=True)):
        capture = packed_capture_id(names[2], number, 1)
        keys = (f"{place.key}#{offset}+7", None, None)
        await storing.erase(
            await storing.foreign(model, ago(hours=1), *keys, capture=capture, put=False)
        )
        assert storing.blobs.get(owner.objects[0], limit=100) == b"datum %d" % number
    assert await storing.stored() == {owner.uid for owner in owners}
    # under a hold also if the places fill the segment
    await storing.hold(model, None, *(owner.uid for owner in owners))
    size = storing.blobs.head(place)
    invented = [
        await storing.foreign(
            *(model, ago(hours=1), f"{place.key}#{600 + n}+{length}", None, None),
            capture=packed_capture_id(names[2], n, 1),
            put=False,
        )
        for n, length in enumerate((0, 0, size - 2560))
    ]
    await storing.erase(*invented)
    assert [storing.blobs.exists(key) for owner in owners for key in owner.objects] == [True] * 9


@pytest.mark.parametrize("known", [False, True])
async def test_a_rewrite_that_did_not_end_is_taken_up(
    storing: Storing, settings: RetentionSettings, minio_server: S3, known: bool
) -> None:
    """After any step of it; `known`: an event has told what the segment was."""
    minio_server.client().set_bucket_versioning(storing.bucket, VersioningConfig(ENABLED))
    model = await storing.model()
    first, second, third, _ = await storing.packed(model, 4, ago(days=1), known=known)

    class Dying(Blobs):
        def write_segments(self, segments: Sequence[Overwritten]) -> None:
            if written:
                for each in segments:
                    self.put(each.rewrite.place, bytes(each.tar), content_type="application/x-tar")
            raise ObjectStoreUnavailable("it is gone")

    for written, stored in ((False, first), (True, second)):
        erasure = await storing.request(stored)
        with Dying(settings) as blobs, pytest.raises(ObjectStoreUnavailable):
            await storing.make_eraser(blobs).finish(erasure)
        await storing.execute(segment.update().values(leased_until=func.now()))
        # what another erasure takes meanwhile
        if written:
            await storing.erase(third)
        assert await storing.eraser.finish(await storing.reload(erasure)) == "deleted"
    [tar] = read_versions(minio_server, storing.bucket)[find_place(first).key]
    assert list_names(tar).count("erased") == 9
    assert [b"datum %d" % n in tar for n in range(4)] == [False, False, False, True]


async def test_what_was_never_stored_is_overwritten_too(storing: Storing, minio_server: S3) -> None:
    model = await storing.model()
    late, stays = await storing.packed(model, 2, ago(days=9))
    data, response, metadata = map(str, late.objects)
    async with storing.engine.begin() as connection:
        for table in PARTITIONED:
            await connection.execute(table.delete().where(table.c.uid == late.uid))
        arrival: Arrival = (model, late.uid, "inference", data, response, metadata, None)
        await enqueue_arrivals(connection, [arrival], cause="expired_arrival")
        # a stranger's that names what is stored
        uid, key = storing.uid(ago(days=9)), str(stays.objects[0])
        other: Arrival = (model, uid, "inference", key, None, None, None)
        await enqueue_arrivals(connection, [other], cause="expired_arrival")
    for queued in await storing.transact(list_unfinished, failed=False):
        assert await storing.eraser.finish(queued) == "deleted"
    assert [count_with(minio_server, storing.bucket, b"datum %d" % n) for n in (0, 1)] == [0, 1]
    await storing.erase(stays)
    assert storing.objects() == set()


async def test_certificates_name_members_and_find_them_again(
    storing: Storing, settings: RetentionSettings, stranger: Stranger
) -> None:
    key = new_key()
    storing.certify(key)
    model = await storing.model()
    first, _ = await storing.packed(model, 2, ago(days=1))
    place = find_place(first)
    tar = storing.blobs.get(place, limit=10**6)
    await storing.erase(first)
    assert await stranger.faults(key, heads=False) == []
    again = Recheck(storing.ledger, [key])

    async def find_again() -> set[str]:
        found = again.find_failures(inventory(settings))
        return {there.reason.split(" is in the bucket")[0] async for there in found}

    assert (await find_again(), await stranger.there_again(key)) == (set(), [])
    storing.blobs.put(place, tar, content_type="application/x-tar")
    members = set(map(str, first.objects))
    assert (await find_again(), set(await stranger.there_again(key))) == (members, members)


async def test_a_restored_backup_takes_its_segments_as_they_are_now(
    storing: Storing, backup: Backup, restore: Restore, minio_server: S3
) -> None:
    model = await storing.model()
    first, second, third = await storing.packed(model, 3, ago(days=2))
    dump = backup()
    uids = [f"uid:{first.uid}"]
    await storing.ledger.write(
        "erasure_requested",
        batches.describe_request(uuid4(), ["model"], {"inference_ids": uids}),
        actor="test",
    )
    await storing.lead(scheduled=False)
    assert await storing.stored() == {second.uid, third.uid}
    again = storing.on(await restore(dump))
    await again.ledger.replay()
    await again.lead(scheduled=False)
    assert await again.stored() == {second.uid, third.uid}
    await again.erase(second)
    left = [count_with(minio_server, storing.bucket, b"datum %d" % n) for n in range(3)]
    assert left == [0, 0, 1]
