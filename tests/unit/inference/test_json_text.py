"""Bytes from outside are read, or refused by one named error with the position."""

import json
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_store.inference.json_text import (
    MAX_DEPTH,
    Number,
    RepeatedNames,
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


def test_numbers_that_no_float_holds_are_kept_as_written() -> None:
    for text in ("1e999", "1e200000", "-1e999", "NaN", "Infinity", "-Infinity", "9" * 5000):
        assert read_json(f"[{text}]".encode()) == [text]
        assert isinstance(read_json(f"[{text}]".encode())[0], Number)


def test_read_exactly_keeps_twenty_digits_and_trailing_zeros() -> None:
    assert read_exactly(b"[12345678901234567890, 1.10, 1E+2]") == [
        "12345678901234567890",
        "1.10",
        "1E+2",
    ]


def test_nul_and_lone_surrogates_survive() -> None:
    assert read_json(rb'["a\u0000b", "\ud800"]') == ["a\0b", "\ud800"]
    assert read_json(b'["a\0b"]') == ["a\0b"]


def test_encodings_of_json_are_read() -> None:
    for encoding in ("utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-32"):
        assert read_json('{"a": "é€"}'.encode(encoding)) == {"a": "é€"}


def test_recovers_the_text_around_latin_1() -> None:
    raw = '{"a": "é", "b": "x"}'.encode("latin-1")
    assert read_json(raw) == {"a": "\udce9", "b": "x"}
    assert encoding_problem(raw) == "byte 0xe9 at offset 7 is not UTF-8"
    assert encoding_problem("é".encode()) is None
    assert encoding_problem('["é"]'.encode("utf-16")) is None


def test_utf_16_and_32_cut_or_beyond_the_last_character_are_refused() -> None:
    for raw in (b"\xff\xfe\x00", b"\xff\xfe\x00\xd8", b"\x00\x00\x11\x00" * 3):
        with pytest.raises(UnreadableJson):
            read_json(raw)


def test_deep_nesting_is_refused_by_name() -> None:
    for closed in (True, False):
        for opening in ("[", '{"a":', '[{"a":'):
            ends = {"[": "]", '{"a":': "}", '[{"a":': "}]"}[opening] * 100_000
            with pytest.raises(TooDeep, match=str(MAX_DEPTH)):
                read_json((opening * 100_000 + ("1" + ends if closed else "")).encode())


def test_brackets_in_strings_are_not_nesting() -> None:
    text = json.dumps(["[" * 5000, '\\"[' * 500])
    assert read_exactly(text) == ["[" * 5000, '\\"[' * 500]


def test_an_error_names_its_position() -> None:
    with pytest.raises(UnreadableJson) as caught:
        read_json(b'[\n {"key": "a",}\n]')
    assert "at line 2, column" in str(caught.value)
    assert '"a",}' in str(caught.value)


def test_names_given_twice_are_noticed() -> None:
    document = read_exactly(b'{"a": 1, "b": 2, "a": 3}')
    assert isinstance(document, RepeatedNames)
    assert document == {"a": "3", "b": "2"}
    assert list(document.pairs) == [("a", "1"), ("b", "2"), ("a", "3")]
    assert write_json(document) == '{"a": 1, "b": 2, "a": 3}'


def test_exact_numbers() -> None:
    assert exact("1.10", **CAPS) == Decimal("1.10")
    assert exact("9" * 1000, **CAPS) == Decimal("9" * 1000)
    assert exact("1e400", **CAPS) == Decimal("1e400")
    assert exact("1e-0000000400", **CAPS) == Decimal("1e-400")
    for over in ("9" * 1001, "1e401", "1e-401", "0." + "1" * 1000, "1e" + "9" * 5000):
        assert exact(over, **CAPS) is None


def test_rejects_malformed_numbers() -> None:
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
