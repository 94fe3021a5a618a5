"""Sidecars: what the index knows of an inference beyond its blobs, as an object beside them.

Producers with a layout of their own leave the event on Kafka alone. A sidecar keeps it in the
bucket, with the metadata as they were found, so that the bucket alone can rebuild the index. Where
the metadata blob is there it says more than the copy in here: edits are written back to it.

    {"sidecar": 1, "event": "<the message>", "metadata": "<the blob>", "input_deleted": false,
     "record": {"cluster", "topic", "epoch", "partition", "offset", "time", "key", "headers"}}

Bytes that are not UTF-8 are base64, under the name with `_base64` behind it.
"""

from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from inference_store.inference.events import InferenceEvent, StorageKey
from inference_store.inference.json_text import Json, UnreadableJson, read_exactly, write_json
from inference_store.inference.layout import belongs_to, sidecar_key

from .records import Record

CONTENT_TYPE = "application/json"
REQUEST = "request"
_VERSION = 1


@dataclass(frozen=True, slots=True)
class Sidecar:
    """A sidecar to write. `content` is empty where it is only to be named."""

    place: StorageKey
    content: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class Contents:
    """What a sidecar holds. `metadata`: None where it travelled in the event, or there is none."""

    event: bytes
    metadata: bytes | None
    record: Mapping[str, Any]
    input_deleted: bool = False


def is_wanted(event: InferenceEvent) -> bool:
    """Whether the bucket would not know the event: our own metadata blobs carry it."""
    place = event.metadata
    own = (event.model_id, event.extras.capture_id, event.received_at)
    return place is None or not belongs_to(place.key, *own)


def place_of(bucket: str, event: InferenceEvent) -> StorageKey:
    """Where the sidecar of an inference is, however often its event arrives."""
    return StorageKey(bucket, sidecar_key(event.model_id, event.received_at, event.uid))


def contents_of(record: Record, metadata: bytes | None) -> Contents:
    """A sidecar's contents. `metadata`: the blob, where it did not travel in the event."""
    place = record.partition_id.values
    found: dict[str, Any] = {**place, "offset": record.offset, "time": record.time.isoformat()}
    found |= _member("key", record.key) | {"headers": [list(pair) for pair in record.headers]}
    return Contents(record.payload, metadata, found)


def encode(contents: Contents) -> bytes:
    """The object's bytes; the same contents are the same bytes."""
    document = {
        "sidecar": _VERSION,
        **_member("event", contents.event),
        **_member("metadata", contents.metadata),
        "record": contents.record,
        "input_deleted": contents.input_deleted,
    }
    return orjson.dumps(document)


def decode(blob: bytes) -> Contents:
    """The contents of a sidecar. Raises ValueError for any other object."""
    document = orjson.loads(blob)
    if not isinstance(document, dict) or document.get("sidecar") != _VERSION:
        raise ValueError("the object is no sidecar of this version")
    event = _bytes(document, "event")
    if event is None:
        raise ValueError("the sidecar holds no event")
    deleted = bool(document.get("input_deleted"))
    return Contents(event, _bytes(document, "metadata"), document.get("record") or {}, deleted)


def without_input(contents: Contents, *, known: frozenset[str]) -> Contents:
    """The contents without what else of the request they hold; the same again changes nothing.

    Of the event the fields that are `known` stay, for a stranger may have put the request under
    any other name. Raises UnreadableJson.
    """
    event = read_exactly(contents.event)
    if not isinstance(event, dict):
        raise UnreadableJson("the event is no object")
    kept = {name: _without_request(value) for name, value in event.items() if name in known}
    metadata = contents.metadata
    if metadata is not None:
        metadata = without_request(metadata) or metadata
    written = write_json(kept).encode("utf-8", "backslashreplace")
    return replace(contents, event=written, metadata=metadata, input_deleted=True)


def without_request(blob: bytes) -> bytes | None:
    """A metadata blob without its request, all else as it was written; None: it has none."""
    try:
        found = read_exactly(blob)
    except UnreadableJson:
        return None
    if not isinstance(found, dict) or REQUEST not in found:
        return None
    # Lone surrogates lie inside strings only, where `\ud800` is JSON; also what was no UTF-8.
    return write_json(_without_request(found)).encode("utf-8", "backslashreplace")


def _without_request(value: Json) -> Json:
    """A blob that travelled in the event, as JSON or as its text."""
    if isinstance(value, dict):
        return {name: each for name, each in value.items() if name != REQUEST}
    if type(value) is str and REQUEST in value:
        rest = without_request(value.encode("utf-8", "surrogatepass"))
        return value if rest is None else rest.decode()
    return value


def _member(name: str, value: bytes | None) -> dict[str, str | None]:
    if value is None:
        return {name: None}
    try:
        return {name: value.decode("utf-8")}
    except UnicodeDecodeError:
        return {f"{name}_base64": b64encode(value).decode()}


def _bytes(document: Mapping[str, Any], name: str) -> bytes | None:
    text = document.get(name)
    if text is not None:
        return str(text).encode("utf-8")
    coded = document.get(f"{name}_base64")
    return None if coded is None else b64decode(coded)
