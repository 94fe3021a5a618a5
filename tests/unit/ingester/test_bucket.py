"""Inferences from pages of a bucket's listing, and reports from their topic."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any
from uuid import UUID

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_store.index import sidecars
from inference_store.index.accounting import PartitionId, ReceivedReport
from inference_store.inference.events import StorageKey
from inference_store.inference.layout import Kind, Member, key_of
from inference_store.inference.producer_reports import ProducerReport, encode
from inference_store.inference.tar import BLOCK, ERASED, Entry, make_header
from inference_store.ingester.batch import read_time
from inference_store.ingester.bucket_events import list_events
from inference_store.ingester.reports import _read
from inference_store.objects import Found
from inference_store.objects.segments import Contents, read_contents
from inference_store.operations.reconcile.stored_reports import BucketPrefix
from tests.producer import Segment, capture, pack
from tests.properties import draw_json

AT = datetime(2026, 11, 1, 12, tzinfo=UTC)
PREFIX = BucketPrefix("b", "captures")


class Bucket:
    """The part of Blobs that the listing uses."""

    def __init__(self, objects: dict[str, bytes]) -> None:
        self.objects = objects
        self.segments: list[str] = []

    def page(self, bucket: str, prefix: str, *, after: str, limit: int) -> list[Found]:
        keys = sorted(key for key in self.objects if key.startswith(prefix) and key > after)
        return [Found(StorageKey(bucket, key), 1, AT) for key in keys[:limit]]

    def read_segment(self, key: StorageKey, wants: Callable[[Entry], bool]) -> Contents:
        tar = self.objects[key.key]
        self.segments.append(key.key)
        return read_contents((tar[at : at + 100] for at in range(0, len(tar), 100)), wants)

    def get_many(self, keys: Sequence[StorageKey], **_: Any) -> list[bytes]:
        return [self.objects[key.key] for key in keys]


def _capture(
    number: int, *, kinds: tuple[Kind, ...] = ("data", "metadata", "response"), **more: Any
) -> dict[str, bytes]:
    event = {"model_id": "m", "inference_id": str(number)}
    document = orjson.dumps({"metadata": [], "event": event, "request": {}} | more)
    keys = {kind: key_of("captures", "m", AT, UUID(int=number), kind) for kind in kinds}
    return {key: document if kind == "metadata" else b"x" for kind, key in keys.items()}


def _list_all(objects: dict[str, bytes], limit: int, prefix: BucketPrefix = PREFIX) -> list[Any]:
    bucket: Any = Bucket(objects)
    pages, after, ahead = [], "", None
    while True:
        listing = list_events(bucket, prefix, after, limit=limit, response_bytes=1000, ahead=ahead)
        pages.append(listing)
        if listing.after is None:
            assert len(bucket.segments) == len({*bucket.segments}), "each is read once"
            return pages
        assert listing.after > after, "it goes on"
        after, ahead = listing.after, listing.ahead


def test_no_capture_is_cut_by_a_page_and_others_carry_no_event() -> None:
    objects: dict[str, bytes] = {}
    for number in range(1, 8):
        objects |= _capture(number)
    for limit in range(1, 25):
        carried = [event for page in _list_all(objects, limit) for event in page.carried]
        ids = [orjson.loads(event.record.payload)["inference_id"] for event in carried]
        assert ids == [str(number) for number in range(1, 8)], limit
        if limit >= 3:
            assert [event.input_deleted_at for event in carried] == [None] * 7, limit
    broken = dict.fromkeys(_capture(1, kinds=("metadata",)), b"no json")
    bare = dict.fromkeys(_capture(2, kinds=("metadata",)), b"[]")
    stray = {"sidecars/m/2026/11/01/12/no-uid": b"{}"}
    (page,) = _list_all(broken | bare, 100)
    assert (page.carried, [key.key for key, _ in page.unreadable]) == ([], [*broken, *bare])
    (page,) = _list_all(stray, 100, BucketPrefix("b", "sidecars"))
    assert [key.key for key, _ in page.unreadable] == [*stray]


def test_an_input_is_gone_without_request_and_datum() -> None:
    capture = _capture(1, kinds=("metadata", "response"))  # never had a datum, or it was lost
    erased = _capture(2, kinds=("metadata", "response"), request=None)
    document = orjson.loads(next(v for k, v in erased.items() if k.endswith("metadata")))
    del document["request"]
    erased = {k: orjson.dumps(document) if k.endswith("metadata") else v for k, v in erased.items()}
    (page,) = _list_all(capture | erased, 100)
    assert [event.input_deleted_at for event in page.carried] == [None, AT]


def test_a_sidecar_carries_the_event_of_another_producer() -> None:
    uid = UUID(int=7)
    contents = sidecars.Contents(b'{"model_id": "m"}', b"[]", {"time": AT.isoformat()}, True)
    key = f"sidecars/m/2026/11/01/12/{uid}"
    (page,) = _list_all({key: sidecars.encode(contents)}, 100, BucketPrefix("b", "sidecars"))
    (carried,) = page.carried
    assert (carried.record.payload, carried.copy) == (contents.event, b"[]")
    assert carried.is_sidecar
    assert (carried.record.time, carried.input_deleted_at) == (AT, AT)


def _erase(segment: Segment, *doomed: Member) -> bytes:
    """Return a segment of which members were overwritten in place."""
    tar = bytearray(segment.tar)
    for member in doomed:
        header = make_header(ERASED, member.length, 0)
        tar[member.offset - BLOCK : member.offset + member.length] = header + bytes(member.length)
    return bytes(tar)


def test_a_segment_carries_the_events_of_its_captures() -> None:
    one, two, three = (
        pack(*(capture(10 * n + k, received_at=AT, model_id="m") for k in range(4)))
        for n in range(3)
    )
    # of the first segment: an input, a response, all of a capture
    members = one.members
    erased = _erase(one, members[0]["data"], members[1]["response"], *members[3].values())
    # the third lay elsewhere before: what it says of itself is no longer true
    moved = three.key.replace("captures/", "captures/moved/")
    objects = {one.key: erased, two.key: two.tar, moved: three.tar} | _capture(1)
    for limit in (1, 4, 5, 100):
        pages = _list_all(objects, limit)
        carried = [event for page in pages for event in page.carried]
        assert not [page.unreadable for page in pages if page.unreadable]
        loose = [event for event in carried if event.places is None]
        assert [event.source.key.rpartition("/")[2] for event in loose] == ["metadata"]
        packed = {event.source.key: event for event in carried if event.places is not None}
        assert len(packed) == 3 + 4 + 4, limit
    for segment, tar in ((one, erased), (two, two.tar), (three, three.tar)):
        key = moved if segment is three else segment.key
        kept = members[:3] if segment is one else segment.members
        for number, there in enumerate(kept):
            at = {kind: replace(member, segment=key) for kind, member in there.items()}
            event = packed[str(at["metadata"])]
            expected: dict[Any, Any] = {
                kind: StorageKey("b", str(member)) for kind, member in at.items()
            }
            if segment is one and number < 2:
                expected |= {"data" if number == 0 else "response": None}
            assert event.places.keys == expected
            assert event.places.extras == {
                "segment_members": 3 if segment is one else 4,
                "segment_bytes": len(tar),
                "segment_hash": sha256(tar).hexdigest(),
            }
            response = at["response"]
            read = tar[response.offset :][: response.length]
            assert event.response == (read if expected["response"] else None)
            assert (
                event.metadata
                == event.copy
                == tar[at["metadata"].offset :][: at["metadata"].length]
            )
            assert (event.input_deleted_at is None) == (expected["data"] is not None)


def test_what_is_no_segment_or_of_another_capture_is_told() -> None:
    good, other = pack(capture(1, received_at=AT)), pack(capture(2, received_at=AT))
    for size in range(0, len(good.tar) - 1024, 97):
        (page,) = _list_all({good.key: good.tar[:size]}, 100)
        assert ([key.key for key, _ in page.unreadable], page.carried) == ([good.key], []), size
    # entries with the ids of another segment are no captures of this one
    (page,) = _list_all({good.key: other.tar}, 100)
    assert (page.carried, page.unreadable) == ([], [])
    # and an event of another capture is not that of the entry
    ids = [json.loads(each.events[0])["capture_id"].encode() for each in (good, other)]
    own, strange = (b'"capture_id": "%b"' % id for id in ids)
    tar = good.tar.replace(own, strange)
    (page,) = _list_all({good.key: tar}, 100)
    assert "another capture" in page.unreadable[0][1]
    assert page.carried == []


def test_metadata_that_left_their_segment_carry_its_event() -> None:
    segment, uid = pack(capture(1, received_at=AT, model_id="m")), UUID(int=9)
    member = segment.members[0]["metadata"]
    document = json.loads(segment.tar[member.offset :][: member.length])
    del document["request"]
    key = f"metadata/m/{uid}"
    prefix = BucketPrefix("b", "metadata")
    (page,) = _list_all({key: orjson.dumps(document), "metadata/m/notes": b"no uid"}, 100, prefix)
    (event,) = page.carried
    assert (event.source.key, event.input_deleted_at) == (key, AT)
    assert event.places.keys == {"metadata": event.source}
    # of others the event is elsewhere: after an edit it is in the segment too
    edited = orjson.dumps(document | {"request": {}})
    document["event"]["metadata_storage_key"] = "captures/x"
    for other in (edited, orjson.dumps(document), b"[]", b"no json"):
        (page,) = _list_all({key: other}, 100, prefix)
        assert (page.carried, page.unreadable) == ([], [])


RECORDED_AT = datetime(2026, 11, 1, tzinfo=UTC)
SOUND = ProducerReport(
    producer="p", reporter="p", number=1, booted_at=RECORDED_AT, reported_at=RECORDED_AT
)
JSON = draw_json(leaves=10)


@dataclass
class Record:
    """A record as aiokafka gives it."""

    value: bytes | None
    timestamp: Any = 0
    topic: str = "reports"
    partition: int = 3
    offset: int = 7
    headers: tuple[tuple[str, bytes], ...] = field(default=())


def test_a_report_has_its_place_and_values_that_postgres_holds(subtests: pytest.Subtests) -> None:
    partition_id = PartitionId("cluster", "reports", 0, 3)
    read = _read(Record(encode(SOUND)), "cluster")
    assert read == ReceivedReport(SOUND, partition_id, 7)
    assert (read.values["offset"], read.values["producer"], read.values["dropped"]) == (7, "p", {})
    for changes in (
        b'"seen":1e400',
        b'"producer":"\\ud800"',
        b'"producer":"\\u0000"',
        b'"dropped":{"\\u0000":1}',
        b'"dropped":{"\\ud800":1}',
        b'"booted_at":"0001-01-01T00:00:00+14:00"',
        b'"reported_at":"9999-12-31T23:59:59-14:00"',
        b'"x":' + b"[" * 20_000,
        b'"x":"' + b"y" * 70_000 + b'"',
    ):
        payload = encode(SOUND)[:-1] + b"," + changes + b"}"
        with subtests.test(changes=changes[:50]), pytest.raises(ValueError):
            _read(Record(payload), "cluster")


@given(st.binary() | JSON.map(lambda value: json.dumps(value).encode()))
def test_any_bytes_are_no_report(payload: bytes) -> None:
    with pytest.raises(ValueError):
        _read(Record(payload), "cluster")


@given(st.sampled_from(sorted(orjson.loads(encode(SOUND)))), JSON)
def test_any_value_of_a_field_is_kept_or_refused(name: str, value: Any) -> None:
    payload = json.dumps(orjson.loads(encode(SOUND)) | {name: value}).encode()
    try:
        read = _read(Record(payload), "cluster")
    except ValueError:
        return
    written = orjson.dumps(read.values["dropped"])
    assert b"\\u0000" not in written
    assert "\0" not in read.report.producer + read.report.reporter
    for count in (read.report.seen, read.report.highest_sequence, read.report.number):
        assert 0 <= count < 2**63
    read.report.booted_at.astimezone(UTC)


def test_any_time_of_a_record_is_a_time() -> None:
    latest = datetime.now(UTC) + timedelta(days=365_000)
    for timestamp in (None, -1, 0, 2**63, 10**30, 1_790_000_000_000):
        assert read_time(timestamp) < latest, timestamp
