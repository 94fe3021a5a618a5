"""Metadata as an object of typed values."""

import json
from decimal import Decimal

from inference_store.api.answer import encode_json
from inference_store.api.typed_metadata import convert_metadata
from inference_store.inference.metadata import Entry


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
    assert document == {"\\ud800": "\udc00", "twice": 2}
