"""Inferences from pages of a bucket's listing; the bucket is a dictionary."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import orjson

from inference_store.index import sidecars
from inference_store.inference.events import StorageKey
from inference_store.inference.layout import Kind, key_of
from inference_store.ingester.rebuild import list_events
from inference_store.objects import Found
from inference_store.operations.reconcile.stored_reports import BucketPrefix

AT = datetime(2026, 11, 1, 12, tzinfo=UTC)
PREFIX = BucketPrefix("b", "captures")


class Bucket:
    """The part of Blobs that the listing uses."""

    def __init__(self, objects: dict[str, bytes]) -> None:
        self.objects = objects

    def page(self, bucket: str, prefix: str, *, after: str, limit: int) -> list[Found]:
        keys = sorted(key for key in self.objects if key.startswith(prefix) and key > after)
        return [Found(StorageKey(bucket, key), 1, AT) for key in keys[:limit]]

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
    pages, after = [], ""
    while True:
        listing = list_events(bucket, prefix, after, limit=limit)
        pages.append(listing)
        if listing.after is None:
            return pages
        assert listing.after > after, "it goes on"
        after = listing.after


def test_no_capture_is_cut_by_the_end_of_a_page() -> None:
    objects: dict[str, bytes] = {}
    for number in range(1, 8):
        objects |= _capture(number)
    for limit in range(1, 25):
        carried = [event for page in _list_all(objects, limit) for event in page.carried]
        ids = [orjson.loads(event.record.payload)["inference_id"] for event in carried]
        assert ids == [str(number) for number in range(1, 8)], limit
        if limit >= 3:
            assert [event.input_deleted_at for event in carried] == [None] * 7, limit


def test_an_input_is_gone_without_request_and_datum() -> None:
    capture = _capture(1, kinds=("metadata", "response"))  # never had a datum, or it was lost
    erased = _capture(2, kinds=("metadata", "response"), request=None)
    document = orjson.loads(next(v for k, v in erased.items() if k.endswith("metadata")))
    del document["request"]
    erased = {k: orjson.dumps(document) if k.endswith("metadata") else v for k, v in erased.items()}
    (page,) = _list_all(capture | erased, 100)
    assert [event.input_deleted_at for event in page.carried] == [None, AT]


def test_names_objects_that_carry_no_event() -> None:
    broken = dict.fromkeys(_capture(1, kinds=("metadata",)), b"no json")
    bare = dict.fromkeys(_capture(2, kinds=("metadata",)), b"[]")
    stray = {"sidecars/m/2026/11/01/12/no-uid": b"{}"}
    (page,) = _list_all(broken | bare, 100)
    assert (page.carried, [key.key for key, _ in page.unreadable]) == ([], [*broken, *bare])
    (page,) = _list_all(stray, 100, BucketPrefix("b", "sidecars"))
    assert [key.key for key, _ in page.unreadable] == [*stray]


def test_a_sidecar_carries_the_event_of_another_producer() -> None:
    uid = UUID(int=7)
    contents = sidecars.Contents(b'{"model_id": "m"}', b"[]", {"time": AT.isoformat()}, True)
    key = f"sidecars/m/2026/11/01/12/{uid}"
    (page,) = _list_all({key: sidecars.encode(contents)}, 100, BucketPrefix("b", "sidecars"))
    (carried,) = page.carried
    assert (carried.record.payload, carried.copy) == (contents.event, b"[]")
    assert carried.is_sidecar
    assert (carried.record.time, carried.input_deleted_at) == (AT, AT)
