"""The columns that every inference has, in the order of the answers of JSON."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple
from uuid import UUID

from inference_store.query.properties import LATENCIES, compute_latency
from inference_store.query.read import BLOBS, STORAGE_KEYS, Inference, get_storage_key

from .kinds import Column, Kind, Values

DISTANCE: Final = "distance_metres"


class Row(NamedTuple):
    """An inference of an export. `distance`: metres, if it is sorted by it; `urls`: its links;
    `contents`: the bytes of its blobs, None for those that are missing."""

    model_id: str
    inference: Inference
    distance: float | None = None
    urls: Mapping[str, str | None] | None = None
    contents: Mapping[str, bytes | None] | None = None


Read = Callable[[Sequence[Row]], Values]


def _stored(name: str) -> Read:
    return lambda rows: [row.inference.row[name] for row in rows]


def _text_of(name: str) -> Read:
    return lambda rows: [_to_text(row.inference.row[name]) for row in rows]


def _to_text(id: UUID | None) -> str | None:
    return None if id is None else str(id)


def _latency(name: str) -> Read:
    return lambda rows: [compute_latency(row.inference.row, name) for row in rows]


def _storage_key(blob: str) -> Read:
    return lambda rows: [get_storage_key(row.inference, blob) for row in rows]


def _columns(kind: Kind, names: Iterable[str]) -> dict[str, tuple[Kind, Read]]:
    return {name: (kind, _stored(name)) for name in names}


_COLUMNS: Final[Mapping[str, tuple[Kind, Read]]] = {
    "uid": (Kind.TEXT, _text_of("uid")),
    "model_id": (Kind.TEXT, lambda rows: [row.model_id for row in rows]),
    "inference_id": (Kind.TEXT, _stored("inference_id")),
    "aliases": (Kind.TEXTS, lambda rows: [row.inference.aliases for row in rows]),
    **_columns(
        Kind.TIME, ("received_at", "forwarded_at", "responded_at", "published_at", "indexed_at")
    ),
    **{name: (Kind.FLOAT, _latency(name)) for name in LATENCIES},
    "ok": (Kind.BOOL, _stored("ok")),
    **_columns(Kind.INTEGER, ("http_status", "grpc_code")),
    **_columns(
        Kind.TEXT, ("error", "trace_id", "model_version", "task_type", "protocol", "action")
    ),
    **_columns(Kind.INTEGER, ("batch_index", "batch_size")),
    "capture_id": (Kind.TEXT, _text_of("capture_id")),
    "data_hash": (Kind.TEXT, _stored("data_hash")),
    "data_size_bytes": (Kind.INTEGER, _stored("data_size")),
    "data_content_type": (Kind.TEXT, _stored("data_content_type")),
    **_columns(Kind.INTEGER, ("width", "height")),
    "top_label": (Kind.TEXT, lambda rows: [row.inference.top_label for row in rows]),
    "top_score": (Kind.FLOAT, _stored("top_score")),
    "prediction_count": (Kind.INTEGER, _stored("prediction_count")),
    "flags": (Kind.TEXTS, _stored("flags")),
    "problem": (Kind.TEXT, _stored("problem")),
    **_columns(Kind.TIME, ("data_deleted_at", "response_deleted_at")),
    "revision": (Kind.INTEGER, _stored("revision")),
    **{name: (Kind.TEXT, _storage_key(blob)) for blob, name in STORAGE_KEYS.items()},
    DISTANCE: (Kind.FLOAT, lambda rows: [row.distance for row in rows]),
}
FIXED_COLUMNS: Final = tuple(Column(name, kind) for name, (kind, _) in _COLUMNS.items())


def read_fixed(column: Column, rows: Sequence[Row]) -> Values:
    """Return the values of a fixed column."""
    return _COLUMNS[column.name][1](rows)


def link_columns(blobs: Iterable[str]) -> list[Column]:
    """Return the columns of links to these blobs."""
    return [Column(f"urls.{blob}", Kind.TEXT) for blob in BLOBS if blob in blobs]


def read_links(column: Column, rows: Sequence[Row]) -> list[Any]:
    """Return the links of a column."""
    blob = column.name.removeprefix("urls.")
    return [None if row.urls is None else row.urls[blob] for row in rows]


def content_columns(blobs: Iterable[str]) -> list[Column]:
    """Return the columns of the bytes of these blobs."""
    return [Column(f"bytes.{blob}", Kind.BYTES) for blob in BLOBS if blob in blobs]


def read_contents(column: Column, rows: Sequence[Row]) -> list[Any]:
    """Return the bytes of a column."""
    blob = column.name.removeprefix("bytes.")
    return [None if row.contents is None else row.contents[blob] for row in rows]
