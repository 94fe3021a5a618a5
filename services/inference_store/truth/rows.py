"""Reads ground truth in bulk: NDJSON, CSV or Parquet, row by row.

A row says of which inference it is: by `inference_id` (or an alias), `uid`, `data_hash`, or the
value of a metadata key (`metadata.KEY`). It has `items`, as a set has, or one item in columns of
its own; then rows of one inference that follow each other are one set.
"""

import csv
from collections.abc import Iterator, Mapping
from decimal import Decimal
from io import TextIOWrapper
from typing import IO, Any, Final, NamedTuple
from uuid import UUID

import orjson

from inference_store.inference.errors import Invalid
from inference_store.inference.events.event import data_hash_of
from inference_store.inference.field_docs import exact
from inference_store.inference.json_text import storable
from inference_store.inference.layout import is_id

from .documents import (
    MOST_ITEMS,
    MOST_LABEL,
    MOST_SOURCE,
    MOST_TEXT,
    SOURCE,
    Box,
    TruthItem,
    TruthSet,
)

NDJSON: Final = "application/x-ndjson"
CSV: Final = "text/csv"
PARQUET: Final = "application/vnd.apache.parquet"
FORMATS: Final = (NDJSON, CSV, PARQUET)
METADATA: Final = "metadata."
ADDRESSES: Final = ("inference_id", "uid", "data_hash")
_CORNERS: Final = ("xmin", "ymin", "xmax", "ymax")
FIELDS: Final = (*ADDRESSES, "source", "complete", "items", "label", *_CORNERS, "text", "value")
"""What a row may have, beside `metadata.KEY`."""
_LINE_BYTES: Final = 1024 * 1024


class Address(NamedTuple):
    """Of which inference: `how` is one of ADDRESSES, or `metadata` by the key `name`."""

    how: str
    value: str
    name: str = ""


class Row(NamedTuple):
    """What a row, or several together, say. `line`: of the first of them, from 1."""

    line: int
    address: Address
    set: TruthSet


class WrongRow(NamedTuple):
    """A row that cannot be used, and why."""

    line: int
    why: str


def read_rows(file: IO[bytes], kind: str, columns: Mapping[str, str]) -> Iterator[Row | WrongRow]:
    """Yield what a file says. `columns`: what it calls our fields, where it has other names.
    Raises Invalid for a file that is none of its kind."""
    read = {NDJSON: _read_ndjson, CSV: _read_csv, PARQUET: _read_parquet}[kind]
    names = {theirs: ours for ours, theirs in columns.items()}
    waiting: Row | None = None
    for line, raw in read(file):
        if isinstance(raw, str):
            yield WrongRow(line, raw)
            continue
        fields = {names.get(key, key): value for key, value in raw.items() if value is not None}
        try:
            row = _read_row(line, fields)
        except ValueError as wrong:
            yield WrongRow(line, str(wrong))
            continue
        if waiting is not None and "items" not in fields and _continues(waiting, row):
            waiting = waiting._replace(set=_join(waiting.set, row.set))
            continue
        if waiting is not None:
            yield waiting
        waiting = row
        if "items" in fields:
            yield row
            waiting = None
    if waiting is not None:
        yield waiting


def _continues(waiting: Row, row: Row) -> bool:
    is_same = waiting.address == row.address and waiting.set.source == row.set.source
    return is_same and len(waiting.set.items) < MOST_ITEMS


def _join(one: TruthSet, other: TruthSet) -> TruthSet:
    return one._replace(items=[*one.items, *other.items], complete=one.complete and other.complete)


def _read_row(line: int, fields: Mapping[str, Any]) -> Row:
    source, complete = fields.get("source", SOURCE), fields.get("complete", True)
    if not isinstance(source, str) or not 0 < len(source) <= MOST_SOURCE or not storable(source):
        raise ValueError(f"source: it is a text of 1 to {MOST_SOURCE} characters")
    if complete in ("true", "false"):
        complete = complete == "true"
    if not isinstance(complete, bool):
        raise ValueError("complete: it is true or false")
    items = fields.get("items")
    if items is None:
        read = [make_item(fields)] if _has_item(fields) else []
    elif isinstance(items, list) and len(items) <= MOST_ITEMS:
        read = [make_item(item) for item in items]
    else:
        raise ValueError(f"items: it is a list of at most {MOST_ITEMS:,} items")
    return Row(line, _read_address(fields), TruthSet(read, source, complete))


def _has_item(fields: Mapping[str, Any]) -> bool:
    return any(fields.get(name) not in (None, "") for name in ("label", "text", "value", *_CORNERS))


def make_item(fields: Any) -> TruthItem:
    """Return an item. Raises ValueError, which names the field."""
    if not isinstance(fields, Mapping):
        raise ValueError("items: each is an object")
    label, text, value = (fields.get(name) for name in ("label", "text", "value"))
    if isinstance(label, int) and not isinstance(label, bool):
        label = str(label)
    for name, most, given in (("label", MOST_LABEL, label), ("text", MOST_TEXT, text)):
        if given and not (isinstance(given, str) and len(given) <= most and storable(given)):
            raise ValueError(f"{name}: it is a text of at most {most:,} characters, without NUL")
    if value in (None, ""):
        value = None
    else:
        try:
            value = exact(Decimal(value) if isinstance(value, str) else value)
        except (ValueError, ArithmeticError):
            raise ValueError("value: it is a finite number") from None
    said: Any = (label or None, _read_box(fields), text or None, value)
    item = TruthItem(*said)
    if item == TruthItem():
        raise ValueError("label: an item has a label, box, text or value")
    return item


def _read_box(fields: Mapping[str, Any]) -> Box | None:
    corners = fields.get("box")
    if corners is None:
        corners = [fields.get(name) for name in _CORNERS]
        if all(corner in (None, "") for corner in corners):
            return None
    try:
        left, top, right, bottom = map(float, corners)
    except (TypeError, ValueError):
        raise ValueError("box: it is four numbers: xmin, ymin, xmax, ymax") from None
    most = float("inf")
    if not (-most < left <= right < most and -most < top <= bottom < most):
        raise ValueError("box: it is xmin, ymin, xmax, ymax: the smaller corner comes first")
    return left, top, right, bottom


def _read_address(fields: Mapping[str, Any]) -> Address:
    given = [name for name in ADDRESSES if fields.get(name) not in (None, "")]
    keys = [name for name in fields if name.startswith(METADATA) and fields[name] != ""]
    if len(given) + len(keys) != 1:
        raise ValueError("inference_id: give one of inference_id, uid, data_hash and metadata.KEY")
    if keys:
        value = fields[keys[0]]
        text = str(value).lower() if isinstance(value, bool) else str(value)
        return Address("metadata", text, keys[0].removeprefix(METADATA))
    [how] = given
    text = str(fields[how])
    if how == "uid":
        return Address(how, str(UUID(text.removeprefix("uid:"))))
    if how == "data_hash":
        if (hash := data_hash_of(text)) is None:
            raise ValueError("data_hash: it is SHA-256 in 64 hexadecimal digits")
        return Address(how, hash)
    if text.startswith("uid:"):
        return Address("uid", str(UUID(text.removeprefix("uid:"))))
    if not is_id(text):
        raise ValueError("inference_id: no inference can have it")
    return Address(how, text)


_Raw = Iterator[tuple[int, Mapping[str, Any] | str]]


def _read_ndjson(file: IO[bytes]) -> _Raw:
    line = 0
    while text := file.readline(_LINE_BYTES + 1):
        line += 1
        if len(text) > _LINE_BYTES:
            while text and not text.endswith(b"\n"):
                text = file.readline(_LINE_BYTES)
            yield line, f"it has more than {_LINE_BYTES:,} bytes"
            continue
        if not text.strip():
            continue
        try:
            row = orjson.loads(text)
        except orjson.JSONDecodeError as wrong:
            yield line, f"it is not JSON: {wrong}"
            continue
        yield line, row if isinstance(row, dict) else "it is no JSON object"


def _read_csv(file: IO[bytes]) -> _Raw:
    csv.field_size_limit(_LINE_BYTES)
    reader = csv.reader(TextIOWrapper(file, "utf-8-sig", newline=""))
    try:
        head = next(reader, [])
        while (values := next(reader, None)) is not None:
            if len(values) > len(head):
                yield reader.line_num, f"it has {len(values)} values for {len(head)} columns"
            elif values:
                pairs = zip(head, values, strict=False)
                yield reader.line_num, {name: value for name, value in pairs if value != ""}
    except (csv.Error, UnicodeDecodeError) as wrong:
        raise Invalid.of("body", f"it is no CSV in UTF-8: {wrong}") from None


def _read_parquet(file: IO[bytes]) -> _Raw:
    try:
        from arro3.io import read_parquet  # noqa: PLC0415  (an extra)
        from nanoarrow import ArrayStream  # noqa: PLC0415

        with ArrayStream(read_parquet(file)) as stream:
            names = [field.name for field in stream.schema.fields]
            for line, values in enumerate(stream.iter_tuples(), 1):
                yield line, dict(zip(names, values, strict=True))
    except ImportError:
        message = "this service cannot read Parquet: install inference-store[parquet], or send CSV"
        raise Invalid.of("body", message) from None
    except BaseException as wrong:  # whatever a damaged file causes: a panic is no Exception
        if isinstance(wrong, Exception) or type(wrong).__name__ == "PanicException":
            raise Invalid.of("body", f"it is no Parquet that can be read: {wrong}") from None
        raise
