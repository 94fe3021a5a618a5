"""Values of metadata are exact, and the same that the store answers as an object."""

import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from inference_store.api.answer import encode_json
from inference_store.api.typed_metadata import convert_metadata
from inference_store.inference.metadata import Entry
from inference_store_client.values.metadata import Metadata, MetadataEntry
from inference_store_client.values.metadata_values import read_value

_BIG = 123456789012345678901234567890
_OBJECT = {"a": Decimal("10.25"), "n": 98765432109876543210}


def make_metadata(*items: tuple[str, str, str | None]) -> Metadata:
    entries = (
        MetadataEntry(key=key, type=kind, value=value, section="extended", flags=())
        for key, kind, value in items
    )
    return Metadata(tuple(entries))


def test_a_value_is_read_as_its_type() -> None:
    cases: list[tuple[str, str | None, Any]] = [
        ("int", "9001", 9001),
        ("integer", str(_BIG), _BIG),
        (" INT ", "-7", -7),
        ("int", "987.0", 987),
        ("int", "1e3", 1000),
        ("int", "9.5", "9.5"),
        ("int", "n/a", "n/a"),
        ("int", "1_000", "1_000"),
        ("int", "٣", "٣"),
        ("int", "1e401", "1e401"),
        ("int", "1e999999999", "1e999999999"),
        ("int", "9" * 1001, "9" * 1001),
        ("int", "9" * 1000, int("9" * 1000)),
        ("float", "0.1", Decimal("0.1")),
        ("double", f"{_BIG}.25", Decimal(f"{_BIG}.25")),
        ("number", "1.50", Decimal("1.50")),
        ("float", "NaN", "NaN"),
        ("float", "inf", "inf"),
        ("bool", "True", True),
        ("boolean", "0", False),
        ("bool", "yes", "yes"),
        ("timestamp", "2026-11-01T06:00:00+02:00", datetime(2026, 11, 1, 4, tzinfo=UTC)),
        ("datetime", "2026-11-01 06:00:00.1234567Z", datetime(2026, 11, 1, 6, 0, 0, 123456, UTC)),
        ("date", "2026-11-01", datetime(2026, 11, 1, tzinfo=UTC)),
        ("timestamp", "yesterday", "yesterday"),
        ("timestamp", "2026-11-01T24:00:00Z", "2026-11-01T24:00:00Z"),
        ("json", '{"a": 10.25, "n": 98765432109876543210}', _OBJECT),
        ("json", "{", "{"),
        ("json", "[NaN]", "[NaN]"),
        ("string", "12", "12"),
        ("", "12", 12),
        ("", "true", True),
        ("", "null", None),
        ("", '"quoted"', '"quoted"'),
        ("no-such-type", "text", "text"),
        ("int", None, None),
    ]
    for kind, text, value in cases:
        read = read_value(kind, text)
        assert (read, type(read)) == (value, type(value)), (kind, text)


_KINDS = st.sampled_from(["string", "int", "float", "bool", "json", "", "NUMBER", "other"])
_TEXTS = st.one_of(
    st.text(max_size=12),
    st.integers().map(str),
    st.decimals(allow_nan=True, allow_infinity=True).map(str),
    st.sampled_from(["true", "0", "null", '"a"', "[1, 2.50]", '{"a": {"b": -0.0}}', "1e5", ".5"]),
)


@given(_KINDS, _TEXTS)
def test_it_is_what_the_store_answers(kind: str, text: str) -> None:
    entry = Entry(key="k", type=kind, value=text, section="extended", flags=())
    answered = encode_json(convert_metadata([entry]))
    expected = json.loads(answered, parse_float=Decimal)["k"]
    assert read_value(kind, text) == expected


def test_metadata_is_a_mapping_and_keeps_every_entry() -> None:
    metadata = make_metadata(
        ("n", "string", "a"), ("t", "timestamp", "2026-11-01"), ("n", "int", "2")
    )
    assert dict(metadata) == {"n": 2, "t": datetime(2026, 11, 1, tzinfo=UTC)}
    assert metadata["t"] + timedelta(1) == datetime(2026, 11, 2, tzinfo=UTC)
    assert [entry.value for entry in metadata.entries] == ["a", "2026-11-01", "2"]
    assert "missing" not in metadata
    assert metadata.get("missing") is None
    assert metadata == make_metadata(*((e.key, e.type, e.value) for e in metadata.entries))
    assert metadata != make_metadata(("n", "int", "2"))
