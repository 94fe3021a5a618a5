"""Members of a segment are read as if each were an object, on every S3 server."""

from dataclasses import replace

import pytest

from inference_store.inference.errors import BlobMissing, BlobTooLarge, BlobUnreadable
from inference_store.inference.events import StorageKey
from inference_store.inference.layout import Kind, Member, member_of
from inference_store.inference.tar import BLOCK, ERASED, make_header
from inference_store.objects import OVER_BUDGET, Blobs
from tests.producer import KINDS, Segment, capture, pack

DATA = (b"first", b"", b"x" * 300_000, b"last")


@pytest.fixture
def segment(blobs: Blobs) -> Segment:
    """A segment of four captures, of which one has empty data, and one was erased in place."""
    packed = pack(*(capture(number, data=data) for number, data in enumerate(DATA)), capture(9))
    tar = bytearray(packed.tar)
    for erased in packed.members[4].values():
        header = make_header(ERASED, erased.length, 0)
        tar[erased.offset - BLOCK : erased.offset + erased.length] = header + bytes(erased.length)
    place = StorageKey(blobs.buckets.default, packed.key)
    blobs.put(place, bytes(tar), content_type="application/x-tar")
    return packed


def make_key(blobs: Blobs, segment: Segment, number: int, kind: Kind = "data") -> StorageKey:
    return blobs.parse(str(segment.members[number][kind]))


def list_odd_keys(blobs: Blobs, segment: Segment) -> list[StorageKey]:
    """Return keys of what was erased, is not there, or is no member."""
    first, size = segment.members[0]["data"], len(segment.tar)
    odd = [
        replace(first, length=4),
        replace(first, offset=first.offset + BLOCK),
        replace(first, offset=0),
        replace(first, offset=size - 1, length=10),
        replace(first, offset=size * 2, length=10),
        # the last two are names that no server takes
        *(
            replace(first, segment=first.segment.replace("captures", folder))
            for folder in ("elsewhere", "a//b", "a/../b")
        ),
    ]
    return [
        make_key(blobs, segment, 4),
        *(StorageKey(blobs.buckets.default, str(member)) for member in odd),
    ]


async def test_a_member_reads_as_an_object(blobs: Blobs, segment: Segment) -> None:
    for number, data in enumerate(DATA):
        key = make_key(blobs, segment, number)
        assert blobs.get(key, limit=len(data)) == data
        assert (blobs.head(key), blobs.exists(key)) == (len(data), True)
        for span in (None, (0, 2), (3, 4), (1, len(data) + 9)):
            if span is None or span[0] < len(data):
                stream = await blobs.stream(key, span)
                expected = data if span is None else data[slice(*span)]
                assert b"".join([piece async for piece in stream.pieces]) == expected
                assert (stream.size, stream.content_type) == (len(expected), None)
    with pytest.raises(BlobTooLarge, match="300000 bytes; at most 299999"):
        blobs.get(make_key(blobs, segment, 2), limit=299_999)
    for key in list_odd_keys(blobs, segment):
        with pytest.raises(BlobMissing):
            blobs.get(key, limit=1000)
        with pytest.raises(BlobMissing):
            await blobs.stream(key)
        assert not blobs.exists(key), key
    with pytest.raises(BlobUnreadable):
        blobs.get(list_odd_keys(blobs, segment)[2], limit=1000)


def test_many_members_are_read_beside_objects(blobs: Blobs, segment: Segment) -> None:
    blobs.put(blobs.parse("loose"), b"loose", content_type="text/plain")
    loose, odd = blobs.parse("loose"), list_odd_keys(blobs, segment)
    keys = [make_key(blobs, segment, n, kind) for n in (3, 0, 1) for kind in KINDS]
    expected = [segment.tar[m.offset :][: m.length] for k in keys if (m := member_of(k.key))]
    large = make_key(blobs, segment, 2)
    results = blobs.get_many([*odd, loose, None, *keys, large], limit=100_000)
    assert all(isinstance(result, BlobMissing) for result in results[: len(odd)])
    assert results[len(odd) : -1] == [b"loose", None, *expected]
    assert isinstance(results[-1], BlobTooLarge)
    # the first are always read, whatever the budget
    assert blobs.get_many(keys, limit=100_000, budget=1) == [expected[0], *[OVER_BUDGET] * 8]
    assert blobs.get_many([loose, keys[0], keys[1]], limit=1000, threads=1, budget=1) == [
        *(b"loose", expected[0], OVER_BUDGET)
    ]
    with_gap = [make_key(blobs, segment, 0), large, make_key(blobs, segment, 3)]
    assert blobs.get_many(with_gap, limit=300_000) == [DATA[0], DATA[2], DATA[3]]


def test_a_member_is_neither_written_nor_linked(blobs: Blobs, segment: Segment) -> None:
    key = make_key(blobs, segment, 0)
    for work in (
        lambda: blobs.put(key, b"", content_type="text/plain"),
        lambda: blobs.put_new(key, b"", content_type="text/plain"),
        lambda: blobs.replace(key, b"", content_type="text/plain"),
        lambda: blobs.presign(key, 60),
    ):
        with pytest.raises(ValueError, match="part of an object"):
            work()
    assert member_of(key.key) == Member(segment.key, BLOCK, 5)
    place = StorageKey(blobs.buckets.default, segment.key)
    assert blobs.get(place, limit=len(segment.tar))[BLOCK:][:5] == b"first"
