"""Formats give back what was written, and are documented."""

import csv
import io
import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import nanoarrow
from hypothesis import given
from hypothesis import strategies as st

from inference_store.api.schemas.inferences import ShownInference, ShownPrediction
from inference_store.export.arrow import ArrowEncoder
from inference_store.export.csv_text import CsvEncoder
from inference_store.export.fixed_columns import FIXED_COLUMNS
from inference_store.export.formats import FORMATS
from inference_store.export.kinds import MEANINGS, Column, Kind
from inference_store.export.prediction_columns import predictions_column

_PAGE = (Path(__file__).parents[3] / "docs" / "how-to" / "export.md").read_text()
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


def test_columns_are_the_fields_of_answers() -> None:
    apart = {"metadata", "predictions", "urls", "cursor"}
    fields = [name for name in ShownInference.model_fields if name not in apart]
    assert [column.name for column in FIXED_COLUMNS] == fields
    members = {name for name, _ in predictions_column(()).members}
    assert members == set(ShownPrediction.model_fields)


def test_each_format_and_kind_is_documented() -> None:
    assert not [media_type for media_type in FORMATS if f"| `{media_type}` |" not in _PAGE]
    rows = re.findall(r"^\| [^|]+ \| `([^`]+)` \| ([^|]+) \|$", _PAGE, re.MULTILINE)
    assert rows == list(MEANINGS.values())
