"""Inferences as columns: which there are, their kinds and values; and as objects of JSON.

Streams, parts of exports and the answers of the api read this one list.
"""

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from operator import itemgetter
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple, TypeAlias
from urllib.parse import quote

import orjson

from inference_store.index import tables
from inference_store.index.key_registry import FROM_TEXT, KEY_TOO_LONG, KeySeen
from inference_store.inference.events.event import parse_stored
from inference_store.inference.metadata import (
    KEY_ALIASES,
    METADATA_TYPES,
    MetadataCaps,
    MetadataType,
    list_entries,
    read_rows,
    type_named,
)
from inference_store.inference.metadata.values import (
    read_bool,
    read_float,
    read_int,
    read_timestamp,
)
from inference_store.objects import Blobs
from inference_store.platform.json_encoding import fit_times
from inference_store.query.properties import LATENCIES, compute_latency
from inference_store.query.read import (
    BLOBS,
    GROUND_TRUTH,
    MATCHED,
    PREDICTION_FIELDS,
    STORAGE_KEYS,
    Inference,
    get_storage_key,
)

BlobChoice: TypeAlias = Literal["none", "links", "copy"]
"""What the parts of an export have of the blobs: nothing, links to them, or their bytes."""


@dataclass(frozen=True, slots=True)
class ChosenBlobs:
    """The blobs that the parts have links to, and those that they copy."""

    linked: Sequence[str] = ()
    copied: Sequence[str] = ()


NO_BLOBS: Final = ChosenBlobs()


def make_blob_path(model_id: str, inference: Inference, blob: str) -> str:
    """Return the path of the api at which a blob is read."""
    return f"/v1/models/{quote(model_id, safe='')}/inferences/uid:{inference.uid}/{blob}"


def link_blobs(  # noqa: PLR0917
    blobs: Blobs,
    model_id: str,
    inference: Inference,
    linked: Sequence[str],
    seconds: int,
    at: datetime | None = None,
) -> dict[str, str | None]:
    """Return a link to each blob that can be read without a key for `seconds`, from now or `at` on;
    None: there is no such blob, or no link to it."""
    links: dict[str, str | None] = dict.fromkeys(linked)
    for blob in linked:
        if (key := get_storage_key(inference, blob)) is not None:
            path = make_blob_path(model_id, inference, blob)
            links[blob] = blobs.link(parse_stored(key), path, seconds, at=at)
    return links


class Kind(StrEnum):
    """What the values of a column are."""

    TEXT = "text"
    INTEGER = "integer"
    FLOAT = "float"
    BOOL = "bool"
    TIME = "time"
    BYTES = "bytes"
    TEXTS = "texts"
    PREDICTIONS = "predictions"


MEANINGS: Final[Mapping[Kind, tuple[str, str]]] = MappingProxyType(
    {
        Kind.TEXT: ("utf8", "the text"),
        Kind.INTEGER: ("int64", "the digits"),
        Kind.FLOAT: ("double", "the shortest decimals that read as the same double"),
        Kind.BOOL: ("bool", "`true` or `false`"),
        Kind.TIME: ("timestamp(us, UTC)", "RFC 3339 in UTC, with microseconds"),
        Kind.BYTES: ("binary", "(in no CSV)"),
        Kind.TEXTS: ("list<utf8>", "a JSON array"),
        Kind.PREDICTIONS: ("list<struct>", "a JSON array of objects"),
    }
)
"""By kind: its type in Arrow, and how CSV spells it. Null is null in Arrow and nothing in CSV."""


class Column(NamedTuple):
    """A column: its name and kind; `members` of predictions: the name and kind of each."""

    name: str
    kind: Kind
    members: tuple[tuple[str, Kind], ...] = ()


Values = Sequence[Any]
"""The values of a column, one a row; None: null. Predictions are tuples in the order of
`members`."""

DISTANCE: Final = "distance_metres"


class Row(NamedTuple):
    """An inference of an export. `distance`: metres, if it is sorted by it; `urls`: its links;
    `contents`: the bytes of its blobs, None for those that are missing."""

    model_id: str
    inference: Inference
    distance: float | None = None
    urls: Mapping[str, str | None] | None = None
    contents: Mapping[str, bytes | None] | None = None


Read: TypeAlias = Callable[[Sequence[Row]], Values]


def _stored(name: str) -> Read:
    return lambda rows: [row.inference.row[name] for row in rows]


def _text_of(name: str) -> Read:
    return lambda rows: [
        None if (id := row.inference.row[name]) is None else str(id) for row in rows
    ]


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


TRUTH_COLUMNS: Final = (Column(GROUND_TRUTH, Kind.TEXT),)


def link_columns(blobs: Iterable[str]) -> list[Column]:
    """Return the columns of links to these blobs."""
    return [Column(f"urls.{blob}", Kind.TEXT) for blob in BLOBS if blob in blobs]


def _read_blobs(column: Column, rows: Sequence[Row]) -> list[Any]:
    """Return the links of a column, or its bytes."""
    kind, _, blob = column.name.partition(".")
    found = [row.urls if kind == "urls" else row.contents for row in rows]
    return [None if blobs is None else blobs[blob] for blobs in found]


# Metadata: a column for each key and type, and one for what fits none of them, exactly.
#
# The columns are fixed before the first row, from the key registry. What they cannot hold as it
# came stands in `metadata_rest`, as JSON, and nothing is lost: keys that were new since then,
# values that do not fit their type, integers beyond 64 bits, digits beyond a double, times finer
# than a microsecond, a key's earlier values if it occurs twice, nulls.

REST: Final = "metadata_rest"
MOST_KEYS: Final = 1000
"""Keys with columns of their own; the values of the others are in the rest."""
_CAPS: Final = MetadataCaps()
_LEAST_INT64, _MOST_INT64 = -(2**63), 2**63 - 1
_PLAIN_DIGITS: Final = 15  # a double holds so many exactly
_PLAIN_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{3}|\.\d{6})?Z", re.ASCII)
_FINER: Final = re.compile(r"\.\d{7}")  # than a microsecond
StoredEntry: TypeAlias = Mapping[str, Any]
KeyKinds: TypeAlias = Mapping[str, Sequence[MetadataType]]
"""Metadata keys with the types that their values have, as the document of an export has them."""
Fit: TypeAlias = tuple[Any, bool]
"""A value as its column has it, or None; and whether it is exactly what came."""


def _fit_text(text: str) -> Fit:
    is_unicode = text.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in text)
    return (text, True) if is_unicode else (None, False)


def _fit_integer(text: str) -> Fit:
    if len(text) <= 18 and text.isascii() and text.isdecimal():
        return int(text), True
    value, _ = read_int(text, _CAPS)
    if value is None or not _LEAST_INT64 <= value <= _MOST_INT64:
        return None, False
    return int(value), True


def _fit_float(text: str) -> Fit:
    if len(text) <= _PLAIN_DIGITS and not text.strip("-.0123456789"):
        try:
            return float(text), True
        except ValueError:
            return None, False
    exact, _ = read_float(text, _CAPS)
    if exact is None:
        return None, False
    value = float(exact)
    return value, Decimal(repr(value)) == exact


def _fit_bool(text: str) -> Fit:
    value, _ = read_bool(text, _CAPS)
    return value, value is not None


def _fit_time(text: str) -> Fit:
    if _PLAIN_TIME.fullmatch(text):
        try:
            return datetime.fromisoformat(text), True
        except ValueError:  # no such day or hour
            return None, False
    value, _ = read_timestamp(text, _CAPS)
    return value, value is not None and _FINER.search(text) is None


_FITS: Final[Mapping[MetadataType, tuple[Kind, Callable[[str], Fit]]]] = MappingProxyType(
    {
        MetadataType.STRING: (Kind.TEXT, _fit_text),
        MetadataType.INT: (Kind.INTEGER, _fit_integer),
        MetadataType.FLOAT: (Kind.FLOAT, _fit_float),
        MetadataType.BOOL: (Kind.BOOL, _fit_bool),
        MetadataType.TIMESTAMP: (Kind.TIME, _fit_time),
        MetadataType.JSON: (Kind.TEXT, _fit_text),
    }
)


@dataclass(frozen=True, slots=True)
class MetadataColumns:
    """The columns of metadata. `owners`: by key and type as it may be spelt, the position of the
    column, and what fits a text into it."""

    columns: tuple[Column, ...]
    owners: Mapping[tuple[str, str], tuple[int, Callable[[str], Fit]]]
    keys: Collection[str] | None
    """Keys that are read; None: all, and those without a column are in the rest."""

    def read(self, stored: Sequence[bytes]) -> list[list[Any]]:
        """Return the values of each column, for the stored metadata of each inference."""
        values: list[list[Any]] = [[None] * len(stored) for _ in self.columns]
        for number, entries in enumerate(stored):
            rest = self._place(read_rows(entries), number, values)
            if rest:
                shown = [{name: entry[name] for name in ("key", "type", "value")} for entry in rest]
                values[-1][number] = json.dumps(shown)
        return values

    def _place(
        self, entries: Iterable[StoredEntry], number: int, values: list[list[Any]]
    ) -> list[StoredEntry]:
        """Put the entries of an inference into the columns; return what is not exactly in them."""
        rest: list[StoredEntry] = []
        placed: dict[int, StoredEntry] = {}
        for entry in entries:
            # else its type is spelt in an uncommon way
            owner = self.owners.get((entry["key"], entry["type"])) or self.owners.get(
                (_read_key(entry), _read_type(entry["type"]).value)
            )
            text = entry["value"]
            if owner is None or text is None:
                if self.keys is None or _read_key(entry) in self.keys:
                    rest.append(entry)
                continue
            position, fit = owner
            values[position][number], is_exact = fit(text)
            if position in placed:
                rest.append(placed.pop(position))
            if is_exact:
                placed[position] = entry
            else:
                rest.append(entry)
        return rest


def choose_columns(kinds_by_key: KeyKinds, chosen: Collection[str] | None) -> MetadataColumns:
    """Return the columns for metadata keys; `chosen`: these alone (None: all)."""
    names = sorted(kinds_by_key)
    if chosen is not None:
        names = [name for name in names if any(is_within(path, name) for path in chosen)]
    names = names[:MOST_KEYS]
    columns: dict[str, Column] = {}
    owners: dict[tuple[str, str], tuple[int, Callable[[str], Fit]]] = {}
    for name in names:
        kinds = kinds_by_key[name]
        for kind in kinds:
            column = f"metadata.{name}" if len(kinds) == 1 else f"metadata.{name}:{kind}"
            if column in columns:  # the key `a:int` beside the key `a` of two types
                continue
            column_kind, fit = _FITS[kind]
            # a value without a type is text
            untyped = ("",) if kind == MetadataType.STRING else ()
            for spelling in (*METADATA_TYPES[kind].accepted, *untyped):
                owners[name, spelling] = (len(columns), fit)
            columns[column] = Column(column, column_kind)
    rest = Column(REST, Kind.TEXT)
    return MetadataColumns((*columns.values(), rest), owners, None if chosen is None else names)


def is_within(name: str, key: str) -> bool:
    """Return whether a name is a key, or a path into its value: `a.b` and `a[]` are within `a`."""
    return name == key or name.startswith((f"{key}.", f"{key}["))


def list_kinds(keys: Iterable[KeySeen]) -> KeyKinds:
    """Return the types of each key that entries came with: no paths into JSON values."""
    kinds_by_key: dict[str, list[MetadataType]] = {}
    roots: set[str] = set()
    for key in sorted(keys, key=lambda key: len(key.name)):
        # the names that a path may begin with: of `a.b[].c` these are `a`, `a.b`, `a.b[]`
        begins = {key.name[:end] for end, letter in enumerate(key.name) if letter in ".["}
        if begins & roots:
            continue
        of_type = [
            seen
            for seen in key.types
            if not (seen.flag.startswith("not_") or seen.flag in {FROM_TEXT, KEY_TOO_LONG})
        ]
        kinds = sorted({_read_type(seen.type) for seen in of_type})
        if kinds:
            kinds_by_key[key.name] = kinds
        if any(_read_type(seen.type) is MetadataType.JSON for seen in key.types):
            roots.add(key.name)
    return kinds_by_key


def _read_type(name: str) -> MetadataType:
    """Return the canonical type; a value without a known one is text."""
    entry = type_named(name) if name else None
    return MetadataType.STRING if entry is None else entry.type


def _read_key(entry: StoredEntry) -> str:
    key: str = entry["key"]
    return KEY_ALIASES.get(key, key)


# Predictions: one column, of each inference a list, with the same members for all.

_KINDS: Final[dict[str, Kind]] = {
    **dict.fromkeys(("ordinal", "rank", "output", "start", "end"), Kind.INTEGER),
    **dict.fromkeys(("output_name", "label", "prompt", "answer", "text"), Kind.TEXT),
    MATCHED: Kind.BOOL,
}
"""Those of the other members are floats."""


def predictions_column(parts: Collection[str]) -> Column:
    """Return the column; with these members alone, or with all if there are none."""
    names = [name for name in PREDICTION_FIELDS if not parts or name in parts]
    members = tuple((name, _KINDS.get(name, Kind.FLOAT)) for name in names)
    return Column("predictions", Kind.PREDICTIONS, members)


def read_predictions(column: Column, rows: Sequence[Row]) -> list[Sequence[Sequence[Any]]]:
    """Return the predictions of each inference, the values of each in the order of the members."""
    names = [name for name, _ in column.members]
    values = [row.inference.prediction_values or () for row in rows]
    if names == list(PREDICTION_FIELDS):
        return values
    positions = [PREDICTION_FIELDS.index(name) for name in names]
    pick = itemgetter(*positions, 0)  # at least two, so that it returns tuples
    return [[pick(prediction)[:-1] for prediction in predictions] for predictions in values]


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns, in their order; `metadata`, `predictions` None: not included. `truth`: one of
    JSON, if it is included."""

    fixed: Sequence[Column]
    links: Sequence[Column] = ()
    metadata: MetadataColumns | None = None
    predictions: Column | None = None
    truth: Sequence[Column] = ()
    contents: Sequence[Column] = ()

    @classmethod
    def of(
        cls,
        include: Collection[str],
        keys: KeyKinds,
        blobs: ChosenBlobs = NO_BLOBS,
    ) -> "Columns":
        """Return the columns of whole inferences: `metadata` and `predictions` if they are in
        `include`; `keys`: those of all models of the export."""
        return cls(
            fixed=[column for column in FIXED_COLUMNS if column.name != DISTANCE],
            links=link_columns(blobs.linked),
            contents=[
                Column(f"bytes.{blob}", Kind.BYTES) for blob in BLOBS if blob in blobs.copied
            ],
            metadata=choose_columns(keys, None) if "metadata" in include else None,
            predictions=predictions_column(()) if "predictions" in include else None,
            truth=TRUTH_COLUMNS if GROUND_TRUTH in include else (),
        )

    def list_all(self) -> list[Column]:
        """Return all columns."""
        metadata = () if self.metadata is None else self.metadata.columns
        predictions = () if self.predictions is None else (self.predictions,)
        return [*self.fixed, *self.links, *metadata, *predictions, *self.truth, *self.contents]

    def read(self, rows: Sequence[Row]) -> list[Values]:
        """Return the values of each column."""
        values: list[Values] = [_COLUMNS[column.name][1](rows) for column in self.fixed]
        values += [_read_blobs(column, rows) for column in self.links]
        if self.metadata is not None:
            values += self.metadata.read([row.inference.metadata or b"[]" for row in rows])
        if self.predictions is not None:
            values.append(read_predictions(self.predictions, rows))
        values += [[row.inference.truth for row in rows] for _ in self.truth]
        values += [_read_blobs(column, rows) for column in self.contents]
        return values


_FORMATTED: Final = {"uid", "inference_id", "top_label", *STORAGE_KEYS.values()}
_UNCHANGED: Final = tuple(
    column.name
    for column in FIXED_COLUMNS
    if column.name in tables.inference.columns and column.name not in _FORMATTED
)
_get_unchanged: Final = itemgetter(*_UNCHANGED)
_TIMES: Final = tuple(name for name in _UNCHANGED if name.endswith("_at"))


def format_inference(
    model_id: str, inference: Inference, *, show_metadata: Callable[[bytes], Any] = list_entries
) -> dict[str, Any]:
    """Format an inference for JSON; its times have been through `fit_times`."""
    row = inference.row
    item: dict[str, Any] = {
        "uid": str(inference.uid),
        "model_id": model_id,
        "inference_id": row["inference_id"],
        "aliases": inference.aliases,
    }
    item.update(zip(_UNCHANGED, _get_unchanged(row), strict=True))
    item["capture_id"] = item["capture_id"] and str(item["capture_id"])  # orjson would ask us
    fit_times(item, _TIMES)
    for name in LATENCIES:
        item[name] = compute_latency(row, name)
    item["data_size_bytes"] = row["data_size"]
    item["top_label"] = inference.top_label
    for blob, name in STORAGE_KEYS.items():
        item[name] = get_storage_key(inference, blob)
    if inference.metadata is not None:
        item["metadata"] = show_metadata(inference.metadata)
    if inference.prediction_values is not None:
        item["predictions"] = inference.predictions
    if inference.truth is not None:
        item[GROUND_TRUTH] = orjson.Fragment(inference.truth)
    return item
