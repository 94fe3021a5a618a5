"""Reads ground truth in bulk: NDJSON, CSV or Parquet, row by row.

A row says of which inference it is: by `inference_id` (or an alias), `uid`, `data_hash`, or the
value of a metadata key (`metadata.KEY`). It has `items`, as a set has, or one item in columns of
its own; then rows of one inference that follow each other are one set. A row that says nothing is
refused: with a misspelt column, it would replace a set by an empty one.
"""

import csv
from codecs import BOM_UTF8
from collections.abc import Collection, Iterator, Mapping, Sequence
from decimal import Decimal
from io import TextIOWrapper
from math import isfinite
from typing import IO, Any, Final, NamedTuple
from uuid import UUID

import orjson

from inference_store.inference.errors import Invalid
from inference_store.inference.events.event import data_hash_of
from inference_store.inference.field_docs import exact
from inference_store.inference.json_text import storable
from inference_store.inference.layout import is_id
from inference_store.inference.nearest import describe_nearest, nearest, shortened

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
_OF_ITEM: Final = ("label", *_CORNERS, "text", "value")
FIELDS: Final = (*ADDRESSES, "source", "complete", "items", *_OF_ITEM)
"""What a row may have, beside `metadata.KEY`."""
_FLAGS: Final = {"true": True, "1": True, "": True, "false": False, "0": False}
_MOST_NAMED: Final = 8
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
    for line, raw in read(file, columns.values()):
        if isinstance(raw, str):
            yield WrongRow(line, raw)
            continue
        fields = {
            names.get(key, key): value
            for key, value in raw.items()
            if value is not None and (key in names or key not in columns)
        }
        try:
            if kind == NDJSON:  # a table may have columns for others
                _refuse_unknown(fields)
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
    if (flag := _FLAGS.get(str(complete).lower())) is None:
        raise ValueError("complete: it is true or false")
    items, has_item = fields.get("items"), _has_item(fields)
    if items is None and not has_item:
        raise ValueError(_describe_silence(fields))
    if items is None:
        read = [make_item(fields)]
    elif has_item:
        raise ValueError("items: give the items, or one item in the row's own fields, not both")
    elif isinstance(items, list) and len(items) <= MOST_ITEMS:
        read = [make_item(item) for item in items]
    else:
        raise ValueError(f"items: it is a list of at most {MOST_ITEMS:,} items")
    return Row(line, _read_address(fields), TruthSet(read, source, flag))


def _has_item(fields: Mapping[str, Any]) -> bool:
    return any(fields.get(name) not in (None, "") for name in _OF_ITEM)


def _refuse_unknown(fields: Mapping[str, Any]) -> None:
    items = fields.get("items")
    of_items = items[:MOST_ITEMS] if isinstance(items, list) else []
    for given, known in ((fields, FIELDS), *((item, TruthItem._fields) for item in of_items)):
        unknown = _list_unknown(given, known) if isinstance(given, Mapping) else []
        if unknown:
            near = describe_nearest(nearest(unknown[0], known, limit=1), known)
            raise ValueError(f"there is no field {shortened(unknown[0])}; {near}")


def _list_unknown(fields: Mapping[str, Any], known: Sequence[str]) -> list[str]:
    return [
        name
        for name in fields
        if name not in known and not (known is FIELDS and name.startswith(METADATA))
    ]


def _describe_silence(fields: Mapping[str, Any]) -> str:
    others = _list_unknown(fields, FIELDS)[:_MOST_NAMED]
    near = [found for name in others for found in nearest(name, _OF_ITEM, limit=1)]
    has = ", ".join(shortened(name) for name in list(fields)[:_MOST_NAMED])
    known = describe_nearest(list(dict.fromkeys(near)), ("items", *_OF_ITEM))
    return f"label: the row does not say what is true, it has only {has}; {known}"


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
    if not all(map(isfinite, (left, top, right, bottom))):
        raise ValueError("box: its numbers must be finite")
    if left > right or top > bottom:
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


def _require_columns(wanted: Collection[str], there: Sequence[str]) -> None:
    for name in wanted:
        if name not in there:
            near = nearest(name, there)
            message = f"the file has no column {shortened(name)}; {describe_nearest(near, there)}"
            raise Invalid.of("query.columns", message, list(there))


def _read_ndjson(file: IO[bytes], _: Collection[str]) -> _Raw:
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
            row = orjson.loads(text.removeprefix(BOM_UTF8) if line == 1 else text)
        except orjson.JSONDecodeError as wrong:
            yield line, f"it is not JSON: {wrong}"
            continue
        yield line, row if isinstance(row, dict) else "it is no JSON object"


def _read_csv(file: IO[bytes], wanted: Collection[str]) -> _Raw:
    csv.field_size_limit(_LINE_BYTES)
    reader = csv.reader(TextIOWrapper(file, "utf-8-sig", newline=""), strict=True)
    head: list[str] | None = None
    while True:
        line = reader.line_num + 1
        try:
            values = next(reader, None)
        except csv.Error as wrong:
            why = str(wrong).replace("unexpected end of data", "a quote is not closed")
            if head is None:
                raise Invalid.of("body", f"its header is no CSV: {why}") from None
            yield line, f"it is no CSV: {why}"
            continue
        except UnicodeDecodeError as wrong:
            raise Invalid.of("body", f"it is no CSV in UTF-8: {wrong}") from None
        if head is None:
            head = values or []
            _require_columns(wanted, head)
        elif values is None:
            return
        elif values and len(values) != len(head):
            yield line, f"it has {len(values)} values for {len(head)} columns"
        elif values:
            pairs = zip(head, values, strict=True)
            yield line, {name: value for name, value in pairs if value != ""}


def _read_parquet(file: IO[bytes], wanted: Collection[str]) -> _Raw:
    try:
        from arro3.io import read_parquet  # noqa: PLC0415  (an extra)
        from nanoarrow import ArrayStream  # noqa: PLC0415

        with ArrayStream(read_parquet(file)) as stream:
            names = [field.name for field in stream.schema.fields]
            _require_columns(wanted, names)
            for line, values in enumerate(stream.iter_tuples(), 1):
                yield line, dict(zip(names, values, strict=True))
    except ImportError:
        message = "this service cannot read Parquet: install inference-store[parquet], or send CSV"
        raise Invalid.of("body", message) from None
    except Invalid:
        raise
    except BaseException as wrong:  # whatever a damaged file causes: a panic is no Exception
        if isinstance(wrong, Exception) or type(wrong).__name__ == "PanicException":
            raise Invalid.of("body", f"it is no Parquet that can be read: {wrong}") from None
        raise
