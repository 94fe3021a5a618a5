"""Answers show what came, whatever it was."""

import json
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal

from inference_store.api.answer import JsonAnswer, encode_json
from inference_store.api.inference_models import convert_metadata
from inference_store.inference.metadata import Entry
from inference_store.platform.json_encoding import escape_text, fit_times


def test_times_numbers_and_odd_text() -> None:
    text, number = escape_text("\ud800\0"), Decimal("1E+400")
    answer = JsonAnswer({"at": datetime(2026, 11, 1, tzinfo=UTC), "number": number, "text": text})
    body = bytes(answer.body)
    assert b'"at":"2026-11-01T00:00:00.000000Z"' in body
    assert b'"number":1E+400' in body
    assert json.loads(body)["text"] == "\ud800\0"


def test_times_that_the_encoder_writes_are_the_same() -> None:
    for at in (
        datetime(2026, 11, 1, 12, 30, 15, 123456, tzinfo=UTC),
        datetime(2026, 11, 1, 12, 30, 15, 120000, tzinfo=UTC),
        datetime(2026, 11, 1, 12, 30, 15, 7, tzinfo=UTC),
        datetime(2026, 11, 1, tzinfo=UTC),
        datetime(2026, 11, 1, 0, 0, 0, 5, tzinfo=timezone(timedelta(hours=2))),
        datetime(1, 1, 1, 0, 0, 0, 1, tzinfo=UTC),
        datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
        None,
    ):
        document = {"at": at, "text": "\ud800"}
        expected = encode_json(document)
        fit_times(document, ["at"])
        assert encode_json(document, times_fit=True) == expected, at
        document["text"] = "plain"
        assert encode_json(document, times_fit=True) == encode_json({"at": at, "text": "plain"}), at


def test_a_value_is_shown_as_its_type() -> None:
    for declared, value, expected in (
        ("int", "239", "239"),
        ("int", "987.0", "987"),
        ("int", "12345678901234567890123", "12345678901234567890123"),
        ("float", "0.10", "0.1"),
        ("number", "1e3", "1000"),
        ("float", "NaN", '"NaN"'),
        ("int", "many", '"many"'),
        ("bool", "TRUE", "true"),
        ("bool", "0", "false"),
        ("bool", "perhaps", '"perhaps"'),
        ("string", "239", '"239"'),
        ("timestamp", "2026-11-01", '"2026-11-01"'),
        ("json", '{"angle": 1.50}', '{"angle": 1.50}'),
        ("json", "[1, 2", '"[1, 2"'),
        ("json", '"text"', '"text"'),
        ("", "239", "239"),
        ("", "true", "true"),
        ("", "hallway", '"hallway"'),
        ("", '"quoted"', '"\\"quoted\\""'),
        ("camera", "[1]", "[1]"),
        ("int", None, "null"),
    ):
        text = encode_json(convert_metadata([Entry("key", declared, value, "extended")])).decode()
        assert text == f'{{"key":{expected}}}', declared
        assert json.loads(text, parse_float=Decimal) is not None, declared


def test_every_text_can_be_shown() -> None:
    entries = [
        Entry("\ud800", "string", "\udc00", "extended"),
        Entry("", "string", "no key", "extended"),
        Entry("twice", "int", "1", "standard"),
        Entry("twice", "int", "2", "extended"),
    ]
    document = json.loads(encode_json(convert_metadata(entries)))
    assert document == {"\\ud800": "\udc00", "twice": [1, 2]}
