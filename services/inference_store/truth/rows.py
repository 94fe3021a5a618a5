"""Reads ground truth in bulk: NDJSON, CSV or Parquet, row by row.

A row says of which inference it is: by `inference_id` (or an alias), `uid`, `data_hash`, or the
value of a metadata key (`metadata.KEY`); and of which model, if that is not said. It has `items`,
as a set has, or one item in columns of its own; then rows of one inference that follow each other
are one set. A row that says nothing is refused: with a misspelt column, it would replace a set by
an empty one.
"""

import csv
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from io import TextIOWrapper
from math import isfinite
from typing import IO, Any, Final, NamedTuple, TypeAlias
from uuid import UUID

from inference_store.inference.errors import Invalid
from inference_store.inference.events.event import data_hash_of
from inference_store.inference.field_docs import NUMBER_LIMITS, exact
from inference_store.inference.json_text import RepeatedNames, exact_json, is_number, storable
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
FIELDS: Final = (*ADDRESSES, "model_id", "source", "complete", "items", *_OF_ITEM)
"""What a row may have, beside `metadata.KEY`."""
_FLAGS: Final = {"true": True, "1": True, "": True, "false": False, "0": False}
_MOST_NAMED: Final = 8
_WRONG: Final = "\0"
"""No column has this name: what is wrong with a row of which something is read."""
MOST_ROW: Final = 1024 * 1024
"""Bytes of a line of NDJSON, a value of CSV, or a message."""
MOST_ADDRESS: Final = 1_024
"""Bytes of a key and its value: what waits is found by an index, whose entries have a bound."""
_REMEMBERED: Final = 250_000
"""Sets back at least that rows of the same inference are looked for."""


class Address(NamedTuple):
    """Of which inference: `how` is one of ADDRESSES, or `metadata` by the key `name`."""

    how: str
    value: str
    name: str = ""


_Of: TypeAlias = tuple[str | None, Address, str]


class Row(NamedTuple):
    """What a row, or several together, say. `line`: of the first of them, from 1. `at`: when it was
    said, if that is not now; `is_whole`: it replaces what the load has said before."""

    line: int
    address: Address
    set: TruthSet
    model_id: str | None = None
    at: datetime | None = None
    is_whole: bool = False

    @property
    def of(self) -> _Of:
        """Whose set it is: of which inference, from which source."""
        return self.model_id, self.address, self.set.source


class WrongRow(NamedTuple):
    """A row that cannot be used, and why. `of`: whose row it is, if that can be read."""

    line: int
    why: str
    of: _Of | None = None
    is_whole: bool = False


class Earlier:
    """Where each key of a load stood first, of some hundred thousand keys."""

    def __init__(self) -> None:
        self._recent, self._older = dict[int, int](), dict[int, int]()

    def note(self, key: object, line: int) -> int | None:
        """Note where a key stands, and return where it stood before; None: nowhere."""
        mark = hash(key)
        before = self._recent.get(mark, self._older.get(mark))
        self._recent.setdefault(mark, line)
        if len(self._recent) >= _REMEMBERED:
            self._recent, self._older = {}, self._recent
        return before


def read_rows(
    file: IO[bytes], kind: str, columns: Mapping[str, str], model_id: str | None = None
) -> Iterator[Row | WrongRow]:
    """Yield the sets of a file, and the rows that are wrong. `columns`: what it calls our fields,
    where it has other names; `model_id`: that of rows that name none. A set is refused if one of
    its rows is wrong or stands elsewhere: what is left of it would pass for all that is true.
    Raises Invalid for a file that is none of its kind."""
    together = _Together()
    nobody: WrongRow | None = None  # a wrong row that may be of the set before it, and of the next
    for row in _read_each(file, kind, columns, model_id):
        if isinstance(row, WrongRow):
            yield row
        if row.of is None:
            together.wrong = nobody = row
            continue
        if row.of != together.of or row.is_whole or together.is_whole:
            yield from together.end()
            together.begin(row, nobody)
        together.add(row)
        nobody = None
    yield from together.end()


@dataclass(slots=True)
class _Together:
    """The rows of one inference that follow each other."""

    of: _Of | None = None
    is_whole: bool = False
    row: Row | None = None
    wrong: WrongRow | None = None
    above: int | None = None
    earlier: Earlier = field(default_factory=Earlier)

    def begin(self, first: Row | WrongRow, wrong: WrongRow | None) -> None:
        self.of, self.is_whole, self.row, self.wrong = first.of, first.is_whole, None, wrong
        self.above = self.earlier.note(first.of, first.line)

    def add(self, row: Row | WrongRow) -> None:
        if isinstance(row, WrongRow):
            self.wrong = row
        elif self.row is None:
            self.row = row
        elif len(self.row.set.items) < MOST_ITEMS:
            one, other = self.row.set, row.set
            both = [*one.items, *other.items], one.source, one.complete and other.complete
            self.row = self.row._replace(set=TruthSet(*both))
        else:
            self.wrong = WrongRow(row.line, f"a set has at most {MOST_ITEMS:,} items", row.of)

    def end(self) -> Iterator[Row | WrongRow]:
        """Yield the set, or why it is refused."""
        if self.row is None:  # nothing, or only wrong rows
            pass
        elif self.wrong is not None and not self.is_whole:
            why = f"its set is refused with line {self.wrong.line}: {self.wrong.why}"
            yield WrongRow(self.row.line, why)
        elif self.above is not None and not self.is_whole:
            why = f"rows of its inference stand further up, from line {self.above} on"
            yield WrongRow(self.row.line, f"inference_id: {why}: sort the file by inference")
        else:
            yield self.row


def _read_each(
    file: IO[bytes], kind: str, columns: Mapping[str, str], model_id: str | None
) -> Iterator[Row | WrongRow]:
    read = {NDJSON: _read_ndjson, CSV: _read_csv, PARQUET: _read_parquet}[kind]
    names = {theirs: ours for ours, theirs in columns.items()}
    for line, raw in read(file, columns.values()):
        if isinstance(raw, str):
            yield WrongRow(line, raw)
            continue
        fields = {
            names.get(key, key): value
            for key, value in raw.items()
            if value is not None and (key in names or key not in columns)
        }
        # a table may have columns for others
        yield read_row(line, fields, model_id, may_have_others=kind != NDJSON)


def read_row(
    line: int,
    fields: Mapping[str, Any],
    model_id: str | None = None,
    *,
    may_have_others: bool = False,
) -> Row | WrongRow:
    """Return the set that one row says. `model_id`: that of a row that names none;
    `may_have_others`: it may have fields that are not ours."""
    of, owner, is_whole = None, None, "items" in fields
    try:
        with suppress(ValueError):
            of = owner = _find_owner(fields, model_id)
        if owner is None and _list_addresses(fields):
            of = model_id, Address("", str(line)), ""  # somebody's, and not its neighbours'
        if _WRONG in fields:
            raise ValueError(fields[_WRONG])
        if not may_have_others:
            _refuse_unknown(fields)
        model_id, address, _ = owner or _find_owner(fields, model_id)
        return Row(line, address, _read_set(fields), model_id, is_whole=is_whole)
    except ValueError as wrong:
        return WrongRow(line, str(wrong), of, is_whole)


def _find_owner(fields: Mapping[str, Any], model_id: str | None) -> _Of:
    named = _read_model(fields) or model_id
    return named, _read_address(fields), str(fields.get("source", SOURCE))


def _read_model(fields: Mapping[str, Any]) -> str | None:
    if (model_id := fields.get("model_id")) in (None, ""):
        return None
    if not isinstance(model_id, str) or not is_id(model_id):
        raise ValueError("model_id: no model can have it")
    return model_id


def _read_set(fields: Mapping[str, Any]) -> TruthSet:
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
    return TruthSet(read, source, flag)


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
    if isinstance(fields, RepeatedNames):
        raise ValueError(_describe_repeated(fields))
    label, text, value = (fields.get(name) for name in ("label", "text", "value"))
    if isinstance(label, int | Decimal) and str(label).removeprefix("-").isdecimal():
        label = str(label)
    for name, most, given in (("label", MOST_LABEL, label), ("text", MOST_TEXT, text)):
        if given and not (isinstance(given, str) and len(given) <= most and storable(given)):
            raise ValueError(f"{name}: it is a text of at most {most:,} characters, without NUL")
    number = None if value in (None, "") else _read_number("value", value)
    said: Any = (label or None, _read_box(fields), text or None, number)
    item = TruthItem(*said)
    if item == TruthItem():
        raise ValueError("label: an item has a label, box, text or value")
    return item


def _describe_repeated(fields: RepeatedNames) -> str:
    return f"{shortened(fields.names[0])} is given more than once: give it once"


def _read_number(name: str, given: Any) -> Decimal:
    is_text = isinstance(given, str) and is_number(given.strip())
    try:
        number: Decimal = exact(Decimal(given) if is_text else given)
    except (ValueError, ArithmeticError):
        raise ValueError(f"{name}: it is a number with {NUMBER_LIMITS}") from None
    return number


def _read_box(fields: Mapping[str, Any]) -> Box | None:
    names, corners = ("box",) * 4, fields.get("box")
    if corners is None:
        names, corners = _CORNERS, [fields.get(name) for name in _CORNERS]
        if all(corner in (None, "") for corner in corners):
            return None
    if not isinstance(corners, list) or len(corners) != len(names):
        raise ValueError("box: it is four numbers: xmin, ymin, xmax, ymax")
    left, top, right, bottom = map(float, map(_read_number, names, corners))
    if not all(map(isfinite, (left, top, right, bottom))):
        raise ValueError("box: its numbers must be finite")
    if left > right or top > bottom:
        raise ValueError("box: it is xmin, ymin, xmax, ymax: the smaller corner comes first")
    return left, top, right, bottom


def _list_addresses(fields: Mapping[str, Any]) -> list[str]:
    """Return the fields that say of which inference the row is."""
    keys = (name for name in fields if name in ADDRESSES or name.startswith(METADATA))
    return [name for name in keys if fields[name] not in (None, "")]


def _read_address(fields: Mapping[str, Any]) -> Address:
    given = _list_addresses(fields)
    if len(given) != 1:
        raise ValueError("inference_id: give one of inference_id, uid, data_hash and metadata.KEY")
    [how] = given
    if how.startswith(METADATA):
        value = fields[how]
        text = str(value).lower() if isinstance(value, bool) else str(value)
        name = how.removeprefix(METADATA)
        if not storable(name + text):
            raise ValueError(f"{METADATA}KEY: no metadata has NUL or a lone surrogate")
        if len(f"{name}{text}".encode()) > MOST_ADDRESS:
            raise ValueError(
                f"{METADATA}KEY: key and value have more than {MOST_ADDRESS:,} bytes; name the"
                " inference by inference_id or uid"
            )
        return Address("metadata", text, name)
    text = str(fields[how])
    if how == "uid" or text.startswith("uid:"):
        try:
            return Address("uid", str(UUID(text.removeprefix("uid:"))))
        except ValueError:
            raise ValueError(f"{how}: {shortened(text)} is not a UUID") from None
    if how == "data_hash":
        if (hash := data_hash_of(text)) is None:
            raise ValueError("data_hash: it is SHA-256 in 64 hexadecimal digits")
        return Address(how, hash)
    if not is_id(text):
        raise ValueError("inference_id: no inference can have it")
    return Address(how, text)


_Raw = Iterator[tuple[int, Mapping[str, Any] | str]]


def _check_columns(wanted: Collection[str], there: Sequence[str]) -> None:
    """Raise Invalid if one that is read is missing, or there twice."""
    for name, times in Counter(there).items():
        if times > 1 and (name in wanted or not _list_unknown({name: None}, FIELDS)):
            message = f"the file has {times} columns {shortened(name)}: name one of them otherwise"
            raise Invalid.of("body", message)
    for name in wanted:
        if name not in there:
            near = nearest(name, there)
            message = f"the file has no column {shortened(name)}; {describe_nearest(near, there)}"
            raise Invalid.of("query.columns", message, list(there))


def _read_ndjson(file: IO[bytes], _: Collection[str]) -> _Raw:
    line = 0
    while text := file.readline(MOST_ROW + 1):
        line += 1
        if len(text) > MOST_ROW:
            while text and not text.endswith(b"\n"):
                text = file.readline(MOST_ROW)
            yield line, f"it has more than {MOST_ROW:,} bytes"
            continue
        if not text.strip():
            continue
        yield line, parse_row(text.removeprefix(BOM_UTF8) if line == 1 else text)


def parse_row(text: bytes) -> dict[str, Any] | str:
    """Return the fields of a row in JSON, or what is wrong with it."""
    try:
        row = exact_json(text)
    except ValueError as wrong:
        return f"it is not JSON: {wrong}"
    if isinstance(row, RepeatedNames):
        return row | {_WRONG: _describe_repeated(row)}
    return row if isinstance(row, dict) else "it is no JSON object"


def _read_csv(file: IO[bytes], wanted: Collection[str]) -> _Raw:
    csv.field_size_limit(MOST_ROW)
    # a byte that is no UTF-8 costs its row alone: a lone surrogate is refused where it stands
    text = TextIOWrapper(file, "utf-8-sig", errors="surrogateescape", newline="")
    reader = csv.reader(text, strict=True)
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
        if head is None:
            head = values or []
            if not storable("".join(head)):
                raise Invalid.of("body", "its header is no CSV in UTF-8")
            _check_columns(wanted, head)
        elif values is None:
            return
        elif values:
            # of too few or too many, the first are as they should be: whose it is, they may say
            row = {name: value for name, value in zip(head, values, strict=False) if value != ""}
            if len(values) != len(head):
                row[_WRONG] = f"it has {len(values)} values for {len(head)} columns"
            yield line, row


def _read_parquet(file: IO[bytes], wanted: Collection[str]) -> _Raw:
    try:
        from arro3.io import read_parquet  # noqa: PLC0415  (an extra)

        batches = read_parquet(file)
        names = batches.schema.names
        _check_columns(wanted, names)
        rows = (row for batch in batches for row in zip(*batch.columns, strict=True))
        for line, row in enumerate(rows, 1):
            yield line, {name: _decode(it.as_py()) for name, it in zip(names, row, strict=True)}
    except ImportError:
        message = "this service cannot read Parquet: install inference-store[parquet], or send CSV"
        raise Invalid.of("body", message) from None
    except Invalid:
        raise
    except BaseException as wrong:  # whatever a damaged file causes: a panic is no Exception
        if isinstance(wrong, Exception) or type(wrong).__name__ == "PanicException":
            message = "it cannot be read as Parquet: write the file again, or send it as CSV"
            raise Invalid.of("body", message) from None
        raise


def _decode(value: Any) -> Any:
    """Return binary as text; what is no UTF-8 is refused where it stands, as in CSV."""
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else value
