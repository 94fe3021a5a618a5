"""Sidecars: objects with the data of an inference that its blobs do not have. Below: how stored
inferences are found.

Producers with a layout of their own leave the event on Kafka alone. A sidecar stores it in the
bucket, with the metadata as they arrived, so that the bucket alone can rebuild the index. If the
metadata blob exists, it counts instead of this copy: edits are written to it.

    {"sidecar": 1, "event": "<the message>", "metadata": "<the blob>", "input_deleted": false,
     "record": {"cluster", "topic", "epoch", "partition", "offset", "time", "key", "headers"}}

Bytes that are not UTF-8 are base64, under the name with `_base64` behind it.
"""

from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, Literal, TypeAlias
from uuid import UUID

import orjson
from sqlalchemy import ARRAY, ColumnElement, Table, Text, and_, any_, literal, or_, select
from sqlalchemy import UUID as UUID_TYPE
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index.tables import erasing, inference
from inference_store.index.unsettled import Record
from inference_store.inference.events import InferenceEvent, StorageKey
from inference_store.inference.json_text import Json, UnreadableJson, read_exactly, write_json
from inference_store.inference.layout import belongs_to, sidecar_key

CONTENT_TYPE = "application/json"
REQUEST = "request"
_VERSION = 1


@dataclass(frozen=True, slots=True)
class Sidecar:
    """A sidecar to write. `content` is empty if it is only to be named."""

    place: StorageKey
    content: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class Contents:
    """The content of a sidecar. `metadata`: None if it was in the event, or there is none."""

    event: bytes
    metadata: bytes | None
    record: Mapping[str, Any]
    input_deleted: bool = False


def is_wanted(event: InferenceEvent) -> bool:
    """Check whether the bucket lacks the event: only our own metadata blobs contain it."""
    metadata_key = event.metadata
    own = (event.model_id, event.extras.capture_id, event.received_at)
    return metadata_key is None or not belongs_to(metadata_key.key, *own)


def make_key(bucket: str, event: InferenceEvent) -> StorageKey:
    """Return the key of an inference's sidecar: the same however often its event arrives."""
    return StorageKey(bucket, sidecar_key(event.model_id, event.received_at, event.uid))


def contents_of(record: Record, metadata: bytes | None) -> Contents:
    """Return a sidecar's contents. `metadata`: the blob, if it was not inside the event."""
    partition = record.partition_id.values
    description: dict[str, Any] = {
        **partition,
        "offset": record.offset,
        "time": record.time.isoformat(),
    }
    description |= _member("key", record.key) | {"headers": [list(pair) for pair in record.headers]}
    return Contents(record.payload, metadata, description)


def encode(contents: Contents) -> bytes:
    """Return the object's bytes; equal contents have equal bytes."""
    document = {
        "sidecar": _VERSION,
        **_member("event", contents.event),
        **_member("metadata", contents.metadata),
        "record": contents.record,
        "input_deleted": contents.input_deleted,
    }
    return orjson.dumps(document)


def decode(blob: bytes) -> Contents:
    """Return the contents of a sidecar. Raises ValueError for any other object."""
    document = orjson.loads(blob)
    if not isinstance(document, dict) or document.get("sidecar") != _VERSION:
        raise ValueError("the object is not a sidecar of this version")
    event = _bytes(document, "event")
    if event is None:
        raise ValueError("the sidecar holds no event")
    deleted = bool(document.get("input_deleted"))
    return Contents(event, _bytes(document, "metadata"), document.get("record") or {}, deleted)


def without_input(contents: Contents, *, known: frozenset[str]) -> Contents:
    """Return the contents without data of the request; repeatable.

    Only the `known` fields of the event stay, because another producer may have put the request
    under any other name. Raises UnreadableJson.
    """
    event = read_exactly(contents.event)
    if not isinstance(event, dict):
        raise UnreadableJson("the event is no object")
    event_without = {
        name: _without_request(value) for name, value in event.items() if name in known
    }
    metadata = contents.metadata
    if metadata is not None:
        metadata = without_request(metadata) or metadata
    written = write_json(event_without).encode("utf-8", "backslashreplace")
    return replace(contents, event=written, metadata=metadata, input_deleted=True)


def without_request(blob: bytes) -> bytes | None:
    """Return a metadata blob without its request, otherwise unchanged; None: it has none."""
    try:
        document = read_exactly(blob)
    except UnreadableJson:
        return None
    if not isinstance(document, dict) or REQUEST not in document:
        return None
    # Lone surrogates, also those for invalid UTF-8, are only in strings, where `\ud800` is JSON.
    return write_json(_without_request(document)).encode("utf-8", "backslashreplace")


def _without_request(value: Json) -> Json:
    """Return a blob inside the event, as JSON or as its text, without the request."""
    if isinstance(value, dict):
        return {name: member for name, member in value.items() if name != REQUEST}
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


# Finds stored inferences so that Postgres reads, and locks, only their partitions.

Identity: TypeAlias = tuple[int, UUID]


def among(table: Table, model: int, uids: Sequence[UUID]) -> ColumnElement[bool]:
    """Match the rows of these inferences; `uids` must not be empty."""
    listed = any_(literal(list(uids), ARRAY(UUID_TYPE(as_uuid=True))))
    # with bounds as well: pruning by them is cheap, by a long list it is not
    return and_(
        table.c.model == model,
        table.c.uid >= min(uids),
        table.c.uid <= max(uids),
        table.c.uid == listed,
    )


def among_keys(column: ColumnElement[Any], keys: Iterable[str]) -> ColumnElement[bool]:
    """Match a column with storage keys, as one parameter: a statement has at most 32,767."""
    return column == any_(literal(sorted(keys), ARRAY(Text(collation="C"))))


def by_model(identities: Iterable[Identity]) -> list[tuple[int, list[UUID]]]:
    """Return the uids of each model, both in order, which is the order of all row locks."""
    ordered = sorted(set(identities))
    return [
        (model, [uid for _, uid in group])
        for model, group in groupby(ordered, lambda identity: identity[0])
    ]


def marked_by(erasure: UUID, model: int, uids: Sequence[UUID]) -> ColumnElement[bool]:
    """Match these marks of an erasure, found by their uids.

    With `=` Postgres may read all marks of the erasure for each batch.
    """
    return among(erasing, model, uids) & erasing.c.erasure.is_not_distinct_from(erasure)


_KEYS = (
    inference.c.data_storage_key,
    inference.c.response_storage_key,
    inference.c.metadata_storage_key,
)
_UIDS = ARRAY(UUID_TYPE(as_uuid=True))
Part: TypeAlias = Literal["input", "response"]


async def stored(
    connection: AsyncConnection, identities: Iterable[tuple[int, UUID]]
) -> set[tuple[int, UUID]]:
    """Return the given (model, uid) pairs that are stored."""
    identities_stored: set[tuple[int, UUID]] = set()
    for model, uids in by_model(identities):
        query = select(inference.c.uid).where(among(inference, model, uids))
        rows = await connection.execute(query)
        identities_stored |= {(model, uid) for uid in rows.scalars()}
    return identities_stored


async def without_parts(
    connection: AsyncConnection, identities: Iterable[Identity]
) -> dict[tuple[Identity, Part], set[str | None]]:
    """Return the erased parts of inferences, each with the objects of the other parts.

    They include parts that an eraser has claimed, and that may be erased already. Call it after
    `fence_shared`.
    """
    others_by_part: dict[tuple[Identity, Part], set[str | None]] = {}
    here = inference.c
    columns = (here.uid, here.data_deleted_at, here.response_deleted_at, *_KEYS)
    gone = or_(here.data_deleted_at.is_not(None), here.response_deleted_at.is_not(None))
    for model, uids in by_model(identities):
        # the claims first: the rows then show claims that end in between; parts that are only
        # marked are deleted after this transaction
        parts = select(erasing.c.uid, erasing.c.scope).where(
            *(among(erasing, model, uids), erasing.c.scope != "inference"),
            erasing.c.claimed_at.is_not(None),
        )
        going = {(row.uid, row.scope) for row in await connection.execute(parts)}
        claimed = here.uid == any_(literal(sorted({uid for uid, _ in going}), _UIDS))
        query = select(*columns).where(among(inference, model, uids), or_(gone, claimed))
        for uid, input_gone, response_gone, *keys in await connection.execute(query):
            data, response, metadata = keys
            if input_gone is not None or (uid, "input") in going:
                others_by_part[(model, uid), "input"] = {response, metadata}
            if response_gone is not None or (uid, "response") in going:
                others_by_part[(model, uid), "response"] = {data, metadata}
    return others_by_part
