"""A row of ground truth in bulk says what is true, or is refused by name."""

from collections.abc import Mapping
from io import BytesIO
from types import MappingProxyType

import pytest

from inference_store.inference.errors import Invalid
from inference_store.truth.documents import TruthItem
from inference_store.truth.rows import CSV, NDJSON, Row, WrongRow, read_rows

_NO_COLUMNS: Mapping[str, str] = MappingProxyType({})


def read(
    body: str | bytes, kind: str = CSV, columns: Mapping[str, str] = _NO_COLUMNS
) -> list[Row | WrongRow]:
    data = body.encode() if isinstance(body, str) else body
    return list(read_rows(BytesIO(data), kind, columns))


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ('"lable": "cat"', "there is no field 'lable'; the nearest is label"),
        ('"box": [1, 2, 3, 4]', "there is no field 'box'; "),
        ('"items": [{"lable": "cat", "text": "x"}]', "there is no field 'lable'; "),
        (
            '"source": "file"',
            "label: the row does not say what is true, it has only 'inference_id'",
        ),
        ('"label": ""', "label: the row does not say what is true"),
        ('"items": null', "label: the row does not say what is true"),
        ('"items": [], "label": "cat"', "items: give the items, or one item"),
        ('"xmin": 1, "ymin": 1, "xmax": 1e400, "ymax": 2', "it is not JSON"),
        ('"xmin": "nan", "ymin": 1, "xmax": 2, "ymax": 2', "box: its numbers must be finite"),
        ('"label": "cat", "complete": "perhaps"', "complete: it is true or false"),
    ],
)
def test_a_row_that_is_no_set_is_refused(row: str, why: str) -> None:
    [wrong] = read(f'{{"inference_id": "x", {row}}}', NDJSON)
    assert isinstance(wrong, WrongRow)
    assert wrong.why.startswith(why)


@pytest.mark.parametrize(
    ("body", "line", "why"),
    [
        (
            "inference_id,Label\nx,cat",
            2,
            "it has only 'inference_id', 'Label'; the nearest is label",
        ),
        ("inference_id,label\nx,", 2, "it has only 'inference_id'; known are items, label, "),
        ("inference_id,label\nx", 2, "it has 1 values for 2 columns"),
        ("inference_id,label\nx,a,b", 2, "it has 3 values for 2 columns"),
        ('inference_id,label\n\nx,"cat\n\ny,dog\n', 3, "a quote is not closed"),
        ("uid,xmin,ymin,xmax,ymax\nx,inf,0,1,1", 2, "box: its numbers must be finite"),
        ("uid,xmin,ymin,xmax,ymax\nx,0,0,1e400,1", 2, "box: its numbers must be finite"),
        ("uid,xmin,ymin,xmax,ymax\nx,2,0,1,1", 2, "the smaller corner comes first"),
    ],
)
def test_a_row_of_csv_that_is_no_set_is_refused(body: str, line: int, why: str) -> None:
    [wrong] = read(body)
    assert isinstance(wrong, WrongRow)
    assert (wrong.line, why in wrong.why) == (line, True), wrong


def test_what_files_spell_otherwise_is_read() -> None:
    flags = ("True", "TRUE", "1", "", "true", "False", "0", "FALSE")
    rows = read("inference_id,text,complete\n" + "".join(f"i{f},x,{f}\n" for f in flags))
    assert [row.set.complete for row in rows if isinstance(row, Row)] == [True] * 5 + [False] * 3
    [empty] = read(b'\xef\xbb\xbf{"inference_id": "x", "items": []}\n', NDJSON)
    assert isinstance(empty, Row)
    assert empty.set.items == []


def test_named_columns_are_in_the_file() -> None:
    columns = {"label": "class"}
    [row] = read("inference_id,label,class\nx,7,cat\n", columns=columns)
    assert isinstance(row, Row)
    assert row.set.items == [TruthItem("cat")]
    for body in ("inference_id,label\nx,cat\n", ""):
        with pytest.raises(Invalid, match=r"^query.columns: the file has no column 'class'"):
            read(body, columns=columns)
    with pytest.raises(Invalid, match="its header is no CSV: a quote is not closed"):
        read('inference_id,"label\nx,cat\n')
