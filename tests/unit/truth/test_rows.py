"""A row of ground truth in bulk says what is true, or is refused by name."""

from collections.abc import Mapping
from io import BytesIO
from types import MappingProxyType

import pytest

from inference_store.inference.errors import Invalid
from inference_store.truth.documents import MOST_ITEMS, TruthItem
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
        ('"label": "cat", "metadata.k": "x"', "inference_id: give one of inference_id, uid, "),
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
        ("uid,label\nx,cat", 2, "uid: 'x' is not a UUID"),
        (f"metadata.k,label\n{'é' * 512},cat", 2, "key and value have more than 1,024 bytes"),
        ("inference_id,label\nx", 2, "it has 1 values for 2 columns"),
        ("inference_id,label\nx,a,b", 2, "it has 3 values for 2 columns"),
        ('inference_id,label\n\nx,"cat\n\ny,dog\n', 3, "a quote is not closed"),
        ("inference_id,xmin,ymin,xmax,ymax\nx,inf,0,1,1", 2, "box: its numbers must be finite"),
        ("inference_id,xmin,ymin,xmax,ymax\nx,0,0,1e400,1", 2, "box: its numbers must be finite"),
        ("inference_id,xmin,ymin,xmax,ymax\nx,2,0,1,1", 2, "the smaller corner comes first"),
    ],
)
def test_a_row_of_csv_that_is_no_set_is_refused(body: str, line: int, why: str) -> None:
    [wrong] = read(body)
    assert isinstance(wrong, WrongRow)
    assert (wrong.line, why in wrong.why) == (line, True), wrong


def test_a_value_that_no_metadata_has_is_refused() -> None:
    [wrong] = read('{"metadata.k": "a\\u0000", "label": "cat"}', NDJSON)
    assert isinstance(wrong, WrongRow)
    assert wrong.why.startswith("metadata.KEY: no metadata has NUL")


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


@pytest.mark.parametrize(
    "body",
    [
        "a,cat\na,\na,dog\nb,cow\n",
        "a,cat\na,dog\na,\nb,cow\n",
        "a,\na,cat\na,dog\nb,cow\n",
        "a,cat\n,dog\na,cow\nb,cow\n",
        "a,cat\na,dog,cow\na,cow\nb,cow\n",
        "a,cat\na,dog\na,dog,cow\nb,cow\n",
        "a\na,dog\nb,cow\n",
        "a,dog\n,cat\nc,\nb,cow\n",
    ],
)
def test_a_set_of_which_a_row_is_wrong_is_refused_whole(body: str) -> None:
    rows = read(f"inference_id,label\n{body}")
    good = [row for row in rows if isinstance(row, Row)]
    assert [(row.address.value, row.set.items) for row in good] == [("b", [TruthItem("cow")])]
    wrong = [row.why for row in rows if isinstance(row, WrongRow)]
    assert len([why for why in wrong if "its set is refused with line " in why]) == 1


def test_a_row_of_nobody_refuses_its_neighbours() -> None:
    """It may be of either; one that says whose it is concerns that set alone."""
    rows = read("inference_id,label\na,cat\n,dog\nb,cow\nc,\nd,cow\n")
    assert sorted(row.line for row in rows if isinstance(row, WrongRow)) == [2, 3, 4, 5]
    assert [row.address.value for row in rows if isinstance(row, Row)] == ["d"]
    whole = '{"inference_id": "a", "items": []}\n'
    rows = read(f"{whole}nonsense\n{whole}", NDJSON)
    assert sorted(row.line for row in rows if isinstance(row, Row)) == [1, 3]


def test_a_byte_that_is_no_utf8_costs_its_row() -> None:
    rows = read(b"inference_id,label,note\na,cat,x\nb,c\xff,x\n\xff,cow,x\nc,cat,x\nd,cow,\xff\n")
    assert sorted(row.line for row in rows if isinstance(row, WrongRow)) == [3, 4]
    assert [row.line for row in rows if isinstance(row, Row)] == [2, 5, 6]
    with pytest.raises(Invalid, match="its header is no CSV in UTF-8"):
        read("inference_id,label\na,cat\n".encode("utf-16"))


def test_rows_of_one_inference_that_stand_apart_are_no_set() -> None:
    rows = read("inference_id,label,source\na,cat,x\nb,cow,x\na,dog,x\na,dog,y\n")
    [apart] = [row for row in rows if isinstance(row, WrongRow)]
    assert (apart.line, "sort the file" in apart.why) == (4, True)
    later = '{"inference_id": "a", "items": []}\n' * 2
    assert [type(row) for row in read(later, NDJSON)] == [Row, Row], "the later replaces it"


def test_a_set_has_a_bound() -> None:
    rows = read("inference_id,label\n" + "a,cat\n" * (MOST_ITEMS + 1))
    [refused] = rows
    assert isinstance(refused, WrongRow)
    assert f"a set has at most {MOST_ITEMS:,} items" in refused.why
