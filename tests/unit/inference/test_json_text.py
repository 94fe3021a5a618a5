"""Bytes from outside are read, or refused by one named error with the position."""

import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_store.inference import json_text
from inference_store.inference.json_text import (
    MAX_DEPTH,
    Number,
    RepeatedNames,
    Span,
    TooDeep,
    UnreadableJson,
    encoding_problem,
    exact,
    is_json_number,
    is_number,
    read_exactly,
    read_json,
    storable,
    write_json,
)
from tests.properties import draw_json

CAPS = {"digits": 1000, "exponent": 400}


def test_numbers_are_kept_as_written() -> None:
    for text in ("1e999", "1e200000", "-1e999", "NaN", "Infinity", "-Infinity", "9" * 5000):
        assert read_json(f"[{text}]".encode()) == [text]
        assert isinstance(read_json(f"[{text}]".encode())[0], Number)
    assert read_exactly(b"[12345678901234567890, 1.10, 1E+2]") == [
        "12345678901234567890",
        "1.10",
        "1E+2",
    ]


def test_encodings_of_json_are_read_or_refused() -> None:
    for encoding in ("utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-32"):
        assert read_json('{"a": "é€"}'.encode(encoding)) == {"a": "é€"}
    assert read_json(rb'["a\u0000b", "\ud800"]') == ["a\0b", "\ud800"]
    assert read_json(b'["a\0b"]') == ["a\0b"]
    raw = '{"a": "é", "b": "x"}'.encode("latin-1")
    assert read_json(raw) == {"a": "\udce9", "b": "x"}
    assert encoding_problem(raw) == "byte 0xe9 at offset 7 is not UTF-8"
    assert encoding_problem("é".encode()) is None
    assert encoding_problem('["é"]'.encode("utf-16")) is None
    for raw in (b"\xff\xfe\x00", b"\xff\xfe\x00\xd8", b"\x00\x00\x11\x00" * 3):
        with pytest.raises(UnreadableJson):
            read_json(raw)


def test_deep_nesting_is_refused_by_name_but_not_in_strings() -> None:
    for closed in (True, False):
        for opening in ("[", '{"a":', '[{"a":'):
            ends = {"[": "]", '{"a":': "}", '[{"a":': "}]"}[opening] * 100_000
            with pytest.raises(TooDeep, match=str(MAX_DEPTH)):
                read_json((opening * 100_000 + ("1" + ends if closed else "")).encode())
    text = json.dumps(["[" * 5000, '\\"[' * 500])
    assert read_exactly(text) == ["[" * 5000, '\\"[' * 500]


def test_errors_name_their_position_and_repeated_names_are_noticed() -> None:
    with pytest.raises(UnreadableJson) as caught:
        read_json(b'[\n {"key": "a",}\n]')
    assert "at line 2, column" in str(caught.value)
    assert '"a",}' in str(caught.value)
    document = read_exactly(b'{"a": 1, "b": 2, "a": 3}')
    assert isinstance(document, RepeatedNames)
    assert document == {"a": "3", "b": "2"}
    assert list(document.pairs) == [("a", "1"), ("b", "2"), ("a", "3")]
    assert write_json(document) == '{"a": 1, "b": 2, "a": 3}'
    text = b'{"a": 1, "\\u0061": [2]}'
    members = list(json_text.members(text, json_text.root(text)))
    assert [(member.name, text[slice(*member.value)]) for member in members] == [
        ("a", b"1"),
        ("a", b"[2]"),
    ]
    assert text[slice(*members[1].whole)] == b'"\\u0061": [2]'
    assert text[slice(*json_text.by_name(text, json_text.root(text))["a"])] == b"[2]"


def test_exact_numbers_and_malformed_ones() -> None:
    assert exact("1.10", **CAPS) == Decimal("1.10")
    assert exact("9" * 1000, **CAPS) == Decimal("9" * 1000)
    assert exact("1e400", **CAPS) == Decimal("1e400")
    assert exact("1e-0000000400", **CAPS) == Decimal("1e-400")
    for over in ("9" * 1001, "1e401", "1e-401", "0." + "1" * 1000, "1e" + "9" * 5000):
        assert exact(over, **CAPS) is None
    for text in ("", " 1", "1_000", "١", "nan", "0x10", "1e", ".", "+", "1,5"):
        assert not is_number(text)
        with pytest.raises(ValueError, match="decimal"):
            exact(text, **CAPS)


def test_small_questions() -> None:
    assert storable("é\n")
    assert not storable("a\0")
    assert not storable("é\ud800")
    assert is_json_number(Number("1"))
    assert is_json_number(1.5)
    assert not is_json_number(True)
    assert not is_json_number("1")


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(raw: bytes) -> None:
    for read in (read_json, read_exactly):
        try:
            read(raw)
        except UnreadableJson as exc:
            assert storable(str(exc))


@given(draw_json())
def test_reads_back_what_it_writes(value: object) -> None:
    first = read_exactly(json.dumps(value))
    assert read_exactly(write_json(first)) == first


# The spans of the values of a JSON text.


def rebuild(text: bytes, span: Span) -> Any:
    """The value, put together from its spans: scalars as written, pairs of an object, lists."""
    first = text[span.start : span.start + 1]
    if first == b"{":
        members = json_text.members(text, span)
        return tuple((each.name, rebuild(text, each.value)) for each in members)
    if first == b"[":
        return [rebuild(text, item) for item in json_text.items(text, span)]
    return text[span.start : span.end]


# As servers and callers write it, beyond what JSON allows: `json_text.read_json` reads all of it.
_ANY_TEXT = st.builds(
    lambda text, is_ascii: json.dumps(text, ensure_ascii=is_ascii).encode(),
    st.text(),
    st.booleans(),
)
_WRITTEN_SCALARS = _ANY_TEXT | st.sampled_from(
    [
        *(b"null", b"NaN", b"-Infinity", b"1e400", b"0.10"),
        *(b'""', b'"\\\\"', b'"\\"]"', b'"{\\\\\\"}"', b'"\\ud800"', b'"a\0\t\xff,"'),
        *(b'"' + b"[a]" * 50 + b'"', b'"' + b"\\n" * 1500 + b'\\""'),
    ]
)
_BLANKS = st.sampled_from([b"", b" ", b"\r\n\t"])
_WRITTEN_NAMES = st.text(max_size=9) | st.sampled_from(["a", "metadata", "a:", 'a"', "a\\"])


@st.composite
def _written_list(draw: st.DrawFn, inner: Any) -> tuple[bytes, Any]:
    items = draw(st.lists(inner, max_size=4))
    blank = draw(_BLANKS)
    texts = [blank + text + blank for text, _ in items]
    return b"[" + (b",".join(texts) or blank) + b"]", [value for _, value in items]


@st.composite
def _written_object(draw: st.DrawFn, inner: Any) -> tuple[bytes, Any]:
    members = draw(st.lists(st.tuples(_WRITTEN_NAMES, inner), max_size=4))
    blank = draw(_BLANKS)
    texts = [
        blank + json.dumps(name).encode() + blank + b":" + blank + text + blank
        for name, (text, _) in members
    ]
    pairs = tuple((name, value) for name, (_, value) in members)
    return b"{" + (b",".join(texts) or blank) + b"}", pairs


_WRITTEN = st.recursive(
    _WRITTEN_SCALARS.map(lambda text: (text, text)),
    lambda inner: _written_list(inner) | _written_object(inner),
    max_leaves=20,
)


@given(written=_WRITTEN, before=st.sampled_from([b"", b"\xef\xbb\xbf", b" \n"]))
def test_spans_are_of_what_was_written(written: tuple[bytes, Any], before: bytes) -> None:
    text, expected = before + written[0] + b" ", written[1]
    read_json(text)
    root = json_text.root(text)
    assert text[root.start : root.end] == written[0]
    assert rebuild(text, root) == expected


LONG = {
    "a flat list": b"[" + b"1," * 100_000 + b"1]",
    "lists in a list": b"[" + b"[1]," * 50_000 + b"[1]]",
    "short texts": b"[" + b'"a",' * 50_000 + b'"a"]',
    "one long text": b'["' + b"a" * 1_000_000 + b'"]',
    "escapes": b'["' + b'\\"' * 100_000 + b'"]',
    "backslashes": b'["' + b"\\\\" * 100_000 + b'"]',
    "objects in a list": b"[" + b'{"a":[{}],"b":"]"},' * 20_000 + b"{}]",
}


def test_the_end_of_a_long_value_is_found() -> None:
    for case, value in LONG.items():
        text = b'{"a": ' + value + b', "b": 1}'
        spans = json_text.by_name(text, json_text.root(text))
        values = {name: text[span.start : span.end] for name, span in spans.items()}
        assert values == {"a": value, "b": b"1"}, case
    text = b"[" * 100_000 + b"]" * 100_000
    assert json_text.root(text) == (0, 200_000)


_NOT_JSON = ("", "{", "[", '{"a', '{"a":', "[,]", "{:}", "[[", '["\\')


@given(st.sampled_from(_NOT_JSON) | st.text(alphabet='{}[]",:\\1a \n', max_size=30))
def test_any_text_ends(text: str) -> None:
    content = text.encode()
    span = json_text.root(content)
    members, items = json_text.members(content, span), json_text.items(content, span)
    assert len([*members, *items]) <= len(content)
