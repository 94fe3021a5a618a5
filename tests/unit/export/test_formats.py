"""Every entry of metadata is found again: exactly in its column, or in the rest."""

import csv
import io
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from typing import Any

import nanoarrow
from hypothesis import example, given
from hypothesis import strategies as st

from inference_store.export.columns import Column, Kind, MetadataColumns, choose_columns, list_kinds
from inference_store.export.formats import ArrowEncoder, CsvEncoder
from inference_store.index.key_registry import KeySeen, TypeSeen
from inference_store.inference.metadata import METADATA_TYPES, Entry, MetadataCaps, encode_entries
from inference_store.inference.metadata.values import read_timestamp

_NOW = datetime(2026, 1, 1, tzinfo=UTC)
_TYPES = st.sampled_from([*METADATA_TYPES, "", "Integer", "unknown"])
_TEXTS = st.one_of(
    st.text(max_size=8),
    st.integers().map(str),
    st.decimals(allow_nan=True).map(str),
    st.datetimes().map(lambda at: f"{at.isoformat()}Z"),
    st.sampled_from(["true", "FALSE", "2026-01-01T00:00:00.1234567Z", "\ud800", "\0", "[1]"]),
)
_ENTRIES = st.lists(
    st.builds(
        Entry,
        key=st.sampled_from(["a", "b", "a.b", "dataset_split"]),
        type=_TYPES,
        value=st.none() | _TEXTS,
        section=st.just("extended"),
        flags=st.just(()),
    ),
    max_size=6,
)


def see(name: str, *types: str, flag: str = "") -> KeySeen:
    return KeySeen(1, name, tuple(TypeSeen(kind, flag, 1, _NOW, _NOW, ()) for kind in types))


_KEYS = [see("a", "int", "string"), see("b", "float", "bool", "timestamp"), see("a.b", "json")]


def read(columns: MetadataColumns, entries: Sequence[Entry]) -> dict[str, Any]:
    values = columns.read([encode_entries(entries)])
    pairs = zip(columns.columns, values, strict=True)
    return {column.name: value[0] for column, value in pairs if value[0] is not None}


def spell(value: Any) -> Any:
    """Return a value of a column as it compares with a text that came."""
    return Decimal(repr(value)) if isinstance(value, float) else value


def parse(value: Any, text: str) -> Any:
    match value:
        case bool():
            return text.strip().lower() in {"true", "1"}
        case int() | float():
            try:
                return Decimal(text)
            except InvalidOperation:  # the number is of another entry with this key
                return None
        case datetime():
            return read_timestamp(text, MetadataCaps())[0]
    return text


@example([Entry("a", "int", "0", "extended", ()), Entry("a", "string", "", "extended", ())])
@example([Entry("b", "float", "-.", "extended", ())])
@given(_ENTRIES)
def test_nothing_is_lost(entries: list[Entry]) -> None:
    row = read(choose_columns(list_kinds(_KEYS), None), entries)
    rest = json.loads(row.pop("metadata_rest", "[]"))
    for entry in entries:
        if {"key": entry.key, "type": entry.type, "value": entry.value} in rest:
            continue
        name = f"metadata.{entry.key}"
        values = [row[column] for column in row if column.partition(":")[0] == name]
        assert entry.value is not None
        assert any(spell(value) == parse(value, entry.value) for value in values), entry


def test_a_time_in_its_plain_form_is_read_as_any_time_is() -> None:
    for text in (
        "2026-01-02T03:04:05Z",
        "2026-01-02T03:04:05.123Z",
        "2026-01-02T03:04:05.123456Z",
        "2026-01-02T23:59:60Z",
        "2026-02-30T00:00:00Z",
        "0000-01-01T00:00:00Z",
        "٢٠٢٦-01-02T03:04:05Z",
    ):
        columns = choose_columns(list_kinds([see("t", "timestamp")]), None)
        row = read(columns, [Entry("t", "timestamp", text, "extended", ())])
        assert row.get("metadata.t") == read_timestamp(text, MetadataCaps())[0], text
        assert ("metadata_rest" in row) == ("metadata.t" not in row), text


def name_columns(keys: Sequence[KeySeen], chosen: set[str] | None = None) -> list[str]:
    return [column.name for column in choose_columns(list_kinds(keys), chosen).columns]


def test_only_chosen_keys_of_types_that_values_have_are_columns() -> None:
    keys = [see(name, "json", flag="present") for name in ("pose", "tags")]
    keys += [see("pose.angle", "int"), see("tags[]", "string"), see("a.b", "int")]
    assert name_columns(keys) == ["metadata.a.b", "metadata.pose", "metadata.tags", "metadata_rest"]
    assert name_columns(keys, {"pose.angle"}) == ["metadata.pose", "metadata_rest"]
    stray = KeySeen(1, "n", (*see("n", "int").types, *see("n", "bool", flag="not_bool").types))
    assert name_columns([stray]) == ["metadata.n", "metadata_rest"]
    both = [see("n", "int", "float"), see("n:int", "int")]
    assert name_columns(both) == ["metadata.n:float", "metadata.n:int", "metadata_rest"]
    row = read(choose_columns(list_kinds(both), None), [Entry("n:int", "int", "1", "extended", ())])
    assert json.loads(row["metadata_rest"]) == [{"key": "n:int", "type": "int", "value": "1"}]
    entries = [Entry("a", "int", "1", "extended", ()), Entry("c", "int", "2", "extended", ())]
    columns = choose_columns(list_kinds([see("a", "int"), see("c", "int")]), {"a"})
    assert read(columns, entries) == {"metadata.a": 1}


_COLUMNS = [
    Column("text", Kind.TEXT),
    Column("integer", Kind.INTEGER),
    Column("float", Kind.FLOAT),
    Column("bool", Kind.BOOL),
    Column("time", Kind.TIME),
    Column("texts", Kind.TEXTS),
    Column("predictions", Kind.PREDICTIONS, (("label", Kind.TEXT), ("score", Kind.FLOAT))),
]
_TEXT = st.text(st.characters(codec="utf-8"), max_size=9)
_FLOAT = st.floats(allow_nan=False)
_FINITE = st.floats(allow_nan=False, allow_infinity=False)
_ROWS = st.lists(
    st.tuples(
        st.none() | _TEXT,
        st.none() | st.integers(-(2**63), 2**63 - 1),
        st.none() | _FLOAT,
        st.none() | st.booleans(),
        st.none() | st.datetimes(),
        st.lists(_TEXT, max_size=3),
        st.lists(st.tuples(st.none() | _TEXT, st.none() | _FINITE), max_size=3),
    ),
    max_size=9,
)


def to_columns(rows: list[tuple[Any, ...]]) -> list[list[Any]]:
    columns = [list(values) for values in zip(*rows, strict=True)] or [[] for _ in _COLUMNS]
    columns[4] = [None if at is None else at.replace(tzinfo=UTC) for at in columns[4]]
    return columns


@given(st.lists(_ROWS, max_size=3))
def test_arrow_gives_back_what_was_written(pages: list[list[tuple[Any, ...]]]) -> None:
    encoder = ArrowEncoder(_COLUMNS)
    written = encoder.encode_head({"warnings": ["w"]})
    written += b"".join(encoder.encode_page(to_columns(page), len(page)) for page in pages if page)
    written += encoder.encode_end()
    stream = nanoarrow.ArrayStream.from_readable(written)
    assert json.loads(dict(stream.schema.metadata)[b"warnings"]) == ["w"]
    table = stream.read_all()
    rows = [row for page in pages for row in page]
    columns = [list(table.child(number).to_pylist()) for number in range(len(_COLUMNS))]
    assert columns[:6] == to_columns(rows)[:6]
    assert columns[6] == [[{"label": a, "score": b} for a, b in row[6]] for row in rows]


@given(_ROWS)
def test_csv_gives_back_what_was_written(rows: list[tuple[Any, ...]]) -> None:
    encoder = CsvEncoder(_COLUMNS)
    written = encoder.encode_head({}) + encoder.encode_page(to_columns(rows), len(rows))
    text = (written + encoder.encode_end()).decode()
    lines = list(csv.reader(io.StringIO(text, newline="")))
    assert lines[0] == [column.name for column in _COLUMNS]
    for line, row in zip(lines[1:], rows, strict=True):
        assert line[0] == (row[0] or "")
        assert line[1] == ("" if row[1] is None else str(row[1]))
        assert row[2] is None or float(line[2]) == row[2]
        assert line[3] == ("" if row[3] is None else str(row[3]).lower())
        assert row[4] is None or datetime.fromisoformat(line[4]) == row[4].replace(tzinfo=UTC)
        assert json.loads(line[5]) == row[5]
        assert [(item["label"], item["score"]) for item in json.loads(line[6])] == row[6]


def test_csv_tells_null_from_an_empty_text() -> None:
    encoder = CsvEncoder([Column("a", Kind.TEXT), Column("b", Kind.TEXT)])
    assert encoder.encode_page([["", None], [None, 'x"\n']], 2) == b'"",\r\n,"x""\n"\r\n'
