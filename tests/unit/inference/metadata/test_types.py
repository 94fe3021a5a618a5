"""Every type, under every name it is accepted by."""

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from inference_store.inference.metadata import METADATA_TYPES, MetadataType, type_named

from .samples import list_flags, list_leaves, list_presences, read_item

ACCEPTED = {
    "string": ("str", "string"),
    "int": ("int", "integer"),
    "float": ("float", "double", "number"),
    "bool": ("bool", "boolean"),
    "timestamp": ("timestamp", "datetime", "date"),
    "json": ("json", "dict", "object"),
}


def test_the_table_has_every_type_and_every_accepted_name() -> None:
    assert {name: set(entry.accepted) for name, entry in METADATA_TYPES.items()} == {
        name: set(names) for name, names in ACCEPTED.items()
    }
    assert set(METADATA_TYPES) == {kind.value for kind in MetadataType}
    for name, names in ACCEPTED.items():
        for spelling in names:
            assert type_named(spelling.upper()) is METADATA_TYPES[name]
    assert type_named("tensor") is None


def test_values() -> None:
    for kind, value, family, expected in (
        ("str", "hallway", "string", "hallway"),
        ("string", "", "string", ""),
        ("string", 5, "string", "5"),
        ("int", "987", "number", Decimal(987)),
        ("integer", "-0987", "number", Decimal(-987)),
        ("int", "987.0", "number", Decimal(987)),
        ("int", "1e3", "number", Decimal(1000)),
        ("int", " 7 ", "number", Decimal(7)),
        ("int", "12345678901234567890123", "number", Decimal("12345678901234567890123")),
        ("int", 12345678901234567890123, "number", Decimal("12345678901234567890123")),
        ("int", "9" * 1000, "number", Decimal("9" * 1000)),
        ("float", "-32.1", "number", Decimal("-32.1")),
        ("double", "0.1000000000000000055511", "number", Decimal("0.1000000000000000055511")),
        ("number", "1e-400", "number", Decimal("1e-400")),
        ("float", ".5", "number", Decimal("0.5")),
        ("float", 1.25, "number", Decimal("1.25")),
        ("bool", "TRUE", "bool", True),
        ("boolean", "0", "bool", False),
        ("bool", "1", "bool", True),
        ("bool", False, "bool", False),
        ("Int", "5", "number", Decimal(5)),
        ("json", "5", "number", Decimal(5)),
        ("json", '"five"', "string", "five"),
        ("json", "true", "bool", True),
    ):
        metadata = read_item(kind, value)
        assert list_leaves(metadata) == [("k", family, expected)], kind
        assert metadata.entries[0].flags == (), kind


def test_numbers_are_as_exact_as_they_were_written() -> None:
    metadata = read_item("float", "0.10")
    assert str(metadata.leaves[0].value) == "0.10"
    assert metadata.entries[0].value == "0.10"


def test_timestamps() -> None:
    at = datetime(2026, 11, 1, 12, 30, tzinfo=UTC)
    for text, expected, flags in (
        ("2026-11-01T12:30:00Z", datetime(2026, 11, 1, 12, 30, tzinfo=UTC), ()),
        ("2026-11-01t12:30:00z", datetime(2026, 11, 1, 12, 30, tzinfo=UTC), ()),
        ("2026-11-01 12:30:00+02:00", datetime(2026, 11, 1, 10, 30, tzinfo=UTC), ()),
        ("2026-11-01", datetime(2026, 11, 1, tzinfo=UTC), ()),
        ("2026-11-01T12:30:00", datetime(2026, 11, 1, 12, 30, tzinfo=UTC), ("no_offset",)),
        ("2026-11-01T12:30:00.123456999Z", at.replace(microsecond=123456), ()),
        ("2026-11-01T12:30:00.5Z", datetime(2026, 11, 1, 12, 30, 0, 500000, tzinfo=UTC), ()),
    ):
        metadata = read_item("timestamp", text)
        assert list_leaves(metadata) == [("k", "timestamp", expected)], text
        assert metadata.leaves[0].flags == metadata.entries[0].flags == flags, text


NO_TIMES = ("yesterday", "20261101", "2026-13-01", "2026-02-30T00:00:00Z", "2016-12-31T23:59:60Z")
OF_ANOTHER_TYPE: dict[str, tuple[Any, ...]] = {
    "int": ("9.5", "abc", "", "1_000", True, {"a": 1}),
    "float": ("1,5", "0x10"),
    "bool": ("yes", "2"),
    "timestamp": (*NO_TIMES, "0001-01-01T00:00:00+01:00", "2026-11-01T24:00:00Z", 1700000000),
    "json": ("{'a': 1}", ""),
    "string": (["a"],),
}


def test_a_value_of_another_type_is_flagged_and_found_as_text() -> None:
    cases = [(kind, value) for kind, values in OF_ANOTHER_TYPE.items() for value in values]
    for kind, value in cases:
        metadata = read_item(kind, value)
        [leaf] = metadata.leaves
        flag = f"not_{kind}"
        assert (leaf.family, leaf.type, leaf.flags) == ("string", kind, (flag, "untyped"))
        assert leaf.value == metadata.entries[0].value, kind
        assert metadata.entries[0].flags == (flag,), kind
        assert list_presences(metadata) == {"k": False}, kind


def test_not_finite_is_kept_flagged_and_found_as_text() -> None:
    for text in ("NaN", "nan", "Infinity", "-inf"):
        for kind in ("int", "float"):
            metadata = read_item(kind, text)
            [leaf] = metadata.leaves
            flags = ("not_finite", "untyped")
            assert (leaf.family, leaf.type, leaf.value, leaf.flags) == ("string", kind, text, flags)
            assert metadata.entries[0][2:] == (text, "extended", ("not_finite",))
            assert list_presences(metadata) == {"k": False}, text


def test_a_number_over_a_cap_is_kept_flagged_and_present() -> None:
    for kind in ("int", "float", "json"):
        for text in ("1e999", "1e200000", "1e-999", "9" * 1001, "1e" + "9" * 9999):
            metadata = read_item(kind, text)
            assert metadata.leaves == (), kind
            assert metadata.entries[0].value == text, kind
            assert metadata.entries[0].flags == ("number_too_large",), kind
            assert list_presences(metadata) == {"k": False}, kind


def test_text_that_postgres_cannot_hold_is_present_only() -> None:
    for kind in ("string", "json", "int"):
        for text, flag in (("a\0", "nul_character"), ("\ud800", "lone_surrogate")):
            metadata = read_item(
                kind, f'"{text}"'.replace("\0", "\\u0000") if kind == "json" else text
            )
            assert metadata.leaves == (), kind
            assert flag in metadata.entries[0].flags, kind
            assert list_presences(metadata) == {"k": False}, kind


def test_without_a_known_type_the_json_decides() -> None:
    for kind, flag in (("tensor", "unknown_type"), ("", "no_type")):
        for value in ("x", 1, 1.5, True, ["a"]):
            families = {str: "string", int: "number", float: "number", bool: "bool", list: "string"}
            metadata = read_item(kind, value)
            assert metadata.leaves[0].family == families[type(value)], kind
            assert list_flags(metadata) == {"k": (flag,)}, kind
            assert metadata.entries[0].type == kind


def test_latitude_and_longitude() -> None:
    for key, inside, outside in (("latitude", "-90", "90.1"), ("longitude", "180", "-180.5")):
        assert read_item("float", inside, key).leaves[0].flags == ()
        metadata = read_item("float", outside, key)
        assert metadata.leaves[0].value == Decimal(outside)
        assert metadata.leaves[0].flags == metadata.entries[0].flags == ("out_of_range",)
    assert read_item("string", "12", "latitude").entries[0].flags == ("reserved_type",)
    assert read_item("", "12", "latitude").leaves[0].family == "number"
