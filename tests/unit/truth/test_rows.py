"""A row of ground truth in bulk says what is true, or is refused by name."""

from collections.abc import Mapping
from decimal import Decimal
from io import BytesIO
from types import MappingProxyType
from typing import Any

import pytest
from arro3.core import Array, DataType, Table
from arro3.io import write_parquet

from inference_store.inference.errors import Invalid
from inference_store.truth.documents import MOST_ITEMS, TruthItem
from inference_store.truth.rows import CSV, NDJSON, PARQUET, Row, WrongRow, read_rows

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
        ('"xmin": 1, "ymin": 1, "xmax": 1e400, "ymax": 2', "box: its numbers must be finite"),
        ('"xmin": "nan", "ymin": 1, "xmax": 2, "ymax": 2', "xmin: it is a number with at most "),
        ('"items": [{"box": [true, 1, 2, 3]}]', "box: it is a number with at most 1,000 digits"),
        ('"items": [{"box": "1234"}]', "box: it is four numbers"),
        ('"value": "1_000"', "value: it is a number with at most 1,000 digits"),
        ('"value": true', "value: it is a number with"),
        ('"value": 1e401', "value: it is a number with"),
        ('"value": NaN', "it is not JSON: NaN is not JSON"),
        ('"text": 7', "text: it is a text"),
        ('"label": 1.5', "label: it is a text"),
        ('"label": "cat", "label": "dog"', "'label' is given more than once: give it once"),
        ('"items": [{"text": "a", "text": "b"}]', "'text' is given more than once"),
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
        ("inference_id,xmin,ymin,xmax,ymax\nx,inf,0,1,1", 2, "xmin: it is a number with"),
        ("inference_id,xmin,ymin,xmax,ymax\nx,0,0,1,", 2, "ymax: it is a number with"),
        ("inference_id,value\nx,1_000", 2, "value: it is a number with"),
        ("inference_id,value\nx,\u0661\u0662", 2, "value: it is a number with"),
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
    [spaced] = read("inference_id,value,xmin,ymin,xmax,ymax\nx, 1.50 , 1, 2, +3., .4e2\n")
    assert isinstance(spaced, Row)
    assert spaced.set.items == [TruthItem(box=(1, 2, 3, 40), value=Decimal("1.50"))]
    [empty] = read(b'\xef\xbb\xbf{"inference_id": "x", "items": []}\n', NDJSON)
    assert isinstance(empty, Row)
    assert empty.set.items == []


@pytest.mark.parametrize("number", ["12345678901234567890123", "1e-400", "-0.10", "9e400"])
def test_numbers_are_exact_in_every_format(number: str) -> None:
    rows = [
        *read(f'{{"inference_id": "x", "value": {number}}}', NDJSON),
        *read(f'{{"inference_id": "x", "items": [{{"value": "{number}"}}]}}', NDJSON),
        *read(f"inference_id,value\nx,{number}\n"),
        *read(write(value=[number]), PARQUET),
    ]
    assert [row.set.items for row in rows if isinstance(row, Row)] == [
        [TruthItem(value=Decimal(number))]
    ] * len(rows)


def test_whole_numbers_are_labels_and_ids() -> None:
    [row] = read('{"inference_id": 1234567890123456789, "label": 98765432109876543210}', NDJSON)
    assert isinstance(row, Row)
    assert (row.address.value, row.set.items[0].label) == (
        *("1234567890123456789", "98765432109876543210"),
    )


def write(**columns: list[Any]) -> bytes:
    """Return a file of Parquet, with the ids that the columns do not have."""
    columns = {"inference_id": ["x"] * len(next(iter(columns.values()))), **columns}
    arrays = [
        Array(values, DataType.binary() if isinstance(values[0], bytes) else DataType.utf8())
        for values in columns.values()
    ]
    write_parquet(Table.from_arrays(arrays, names=list(columns)), file := BytesIO())
    return file.getvalue()


def test_binary_columns_of_parquet_are_text() -> None:
    rows = read(write(inference_id=[b"frame-1", b"\xff", b"c"], label=["a", "b", "c"]), PARQUET)
    assert [row.address.value for row in rows if isinstance(row, Row)] == ["frame-1", "c"]
    assert [row.why for row in rows if isinstance(row, WrongRow)] == [
        "inference_id: no inference can have it"
    ]


def test_decimals_of_parquet_are_exact() -> None:
    numbers = ["-1.50", "-0.01", "-123456789012345678901234567890.25", "3.00"]
    decimals = Array(numbers, DataType.utf8()).cast(DataType.decimal128(38, 2))
    ids = Array(["a", "b", "c", "d"], DataType.utf8())
    table = Table.from_arrays([ids, decimals], names=["inference_id", "value"])
    write_parquet(table, file := BytesIO())
    rows = read(file.getvalue(), PARQUET)
    values = [row.set.items[0].value for row in rows if isinstance(row, Row)]
    assert values == [Decimal(number) for number in numbers]


def test_a_broken_parquet_file_says_what_to_do() -> None:
    whole = write(label=["cat"])
    for broken in (whole[:-4], whole[:8] + bytes(20) + whole[28:], b"", b"PAR1PAR1"):
        with pytest.raises(Invalid) as raised:
            read(broken, PARQUET)
        told = "body: it cannot be read as Parquet: write the file again, or send it as CSV."
        assert raised.value.detail == told


def test_two_columns_of_one_name_are_refused_if_they_are_read() -> None:
    twice = Table.from_arrays([Array(["x"], DataType.utf8())] * 2, names=["label"] * 2)
    write_parquet(twice, file := BytesIO())
    for body, kind in ((b"inference_id,label,label\nx,cat,dog\n", CSV), (file.getvalue(), PARQUET)):
        with pytest.raises(Invalid, match="the file has 2 columns 'label': name one of them"):
            read(body, kind)
    with pytest.raises(Invalid, match="the file has 2 columns 'class'"):
        read("inference_id,class,class\nx,cat,dog\n", columns={"label": "class"})
    [row] = read("inference_id,label,note,note,,\nx,cat,a,b,,\n")
    assert isinstance(row, Row)


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
