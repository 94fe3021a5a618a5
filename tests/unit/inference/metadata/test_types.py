"""Every type, under every name it is accepted by."""

import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from inference_store.inference.metadata import (
    METADATA_TYPES,
    Entry,
    MetadataType,
    decode_entries,
    encode_entries,
    list_entries,
    read_metadata,
    type_named,
)
from inference_store.inference.metadata.values import MOST_TOO_LONG

from .samples import list_flags, list_leaves, list_presences, make_item, read, read_item

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
    metadata = read_item("float", "0.10")
    assert str(metadata.leaves[0].value) == "0.10"
    assert metadata.entries[0].value == "0.10"
    text = "".join(chr(33 + number * 7919 % 90) for number in range(10_000))
    assert list_leaves(read_item("string", text)) == [("k", "string", text)]


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


def test_what_is_not_finite_or_over_a_cap_is_kept_and_flagged() -> None:
    for text in ("NaN", "nan", "Infinity", "-inf"):
        for kind in ("int", "float"):
            metadata = read_item(kind, text)
            [leaf] = metadata.leaves
            flags = ("not_finite", "untyped")
            assert (leaf.family, leaf.type, leaf.value, leaf.flags) == ("string", kind, text, flags)
            assert metadata.entries[0][2:] == (text, "extended", ("not_finite",))
            assert list_presences(metadata) == {"k": False}, text
    for kind in ("int", "float", "json"):
        for text in ("1e999", "1e200000", "1e-999", "9" * 1001, "1e" + "9" * 9999):
            metadata = read_item(kind, text)
            assert metadata.leaves == (), kind
            assert metadata.entries[0].value == text, kind
            assert metadata.entries[0].flags == ("number_too_large",), kind
            assert list_presences(metadata) == {"k": False}, kind


def test_text_and_keys_that_postgres_cannot_hold() -> None:
    for kind in ("string", "json", "int"):
        for text, flag in (("a\0", "nul_character"), ("\ud800", "lone_surrogate")):
            metadata = read_item(
                kind, f'"{text}"'.replace("\0", "\\u0000") if kind == "json" else text
            )
            assert metadata.leaves == (), kind
            assert flag in metadata.entries[0].flags, kind
            assert list_presences(metadata) == {"k": False}, kind
    metadata = read(
        [make_item("a\0", "int", "1"), make_item("\ud800", "int", "1"), make_item("", "int", "1")]
    )
    assert list_leaves(metadata) == []
    assert list_presences(metadata) == {}
    assert set(list_flags(metadata).values()) == {("key_not_text",)}
    assert len(metadata.entries) == 3


def test_types_are_those_of_json_or_of_reserved_names() -> None:
    for kind, flag in (("tensor", "unknown_type"), ("", "no_type")):
        for value in ("x", 1, 1.5, True, ["a"]):
            families = {str: "string", int: "number", float: "number", bool: "bool", list: "string"}
            metadata = read_item(kind, value)
            assert metadata.leaves[0].family == families[type(value)], kind
            assert list_flags(metadata) == {"k": (flag,)}, kind
            assert metadata.entries[0].type == kind
    for key, inside, outside in (("latitude", "-90", "90.1"), ("longitude", "180", "-180.5")):
        assert read_item("float", inside, key).leaves[0].flags == ()
        metadata = read_item("float", outside, key)
        assert metadata.leaves[0].value == Decimal(outside)
        assert metadata.leaves[0].flags == metadata.entries[0].flags == ("out_of_range",)
    assert read_item("string", "12", "latitude").entries[0].flags == ("reserved_type",)
    assert read_item("", "12", "latitude").leaves[0].family == "number"


# Over a cap: kept, not indexed, flagged.


def test_keys_an_inference_and_characters_a_key() -> None:
    metadata = read([make_item(f"k{number}", "int", "1") for number in range(300)])
    assert len(metadata.entries) == 300
    assert len(metadata.leaves) == 256
    assert list_flags(metadata)["k255"] == ()
    assert list_flags(metadata)["k256"] == ("keys_capped",)
    assert metadata.flags == ("metadata_keys_capped",)
    metadata = read([make_item("x" * 256, "int", "1"), make_item("y" * 257, "int", "2")])
    assert list_leaves(metadata) == [("x" * 256, "number", 1)]
    assert list_flags(metadata)["y" * 257] == ("key_too_long",)


def test_keys_that_are_too_long_are_present_by_their_beginning() -> None:
    path = {"z" * 300: {"deeper": 1}, "z" * 301: 2}
    items = [
        make_item("y" * 257, "int", "2"),
        make_item("y" * 300, "int", None),
        make_item("k", "json", path),
    ]
    metadata = read([*items, make_item("y" * 255 + "\0\0", "int", "3")])
    by_name = {presence.name: presence for presence in metadata.presences}
    assert len(by_name) == len(metadata.presences)
    assert by_name["y" * 255 + "…"] == ("y" * 255 + "…", "int", False, ("key_too_long",))
    assert by_name["k." + "z" * 253 + "…"].flags == ("key_too_long",)
    assert set(by_name) == {"k", "y" * 255 + "…", "k." + "z" * 253 + "…"}
    assert list_leaves(metadata) == []
    metadata = read_item("json", {f"{n:03}" + "x" * 300: 1 for n in range(100)})
    assert len(metadata.presences) == 1 + MOST_TOO_LONG
    name = "y" * 255 + "…"
    metadata = read([make_item(name, "json", {}), make_item("y" * 257, "int", "2")])
    assert [presence.name for presence in metadata.presences] == [name]
    assert metadata.presences[0].flags == ()


def test_levels() -> None:
    def nested(levels: int) -> str:
        return '{"a":' * levels + "1" + "}" * levels

    assert list_leaves(read_item("json", nested(8))) == [("k" + ".a" * 8, "number", 1)]
    metadata = read_item("json", nested(9))
    assert list_leaves(metadata) == []
    assert list_presences(metadata)["k" + ".a" * 8] is False
    assert list_flags(metadata) == {"k": ("too_deep",)}
    assert metadata.flags == ("metadata_too_deep",)
    metadata = read_item("json", "[" * 100_000)
    assert list_flags(metadata) == {"k": ("too_deep",)}
    assert list_presences(metadata) == {"k": False}
    assert metadata.entries[0].value == "[" * 100_000
    metadata = read_metadata(b"[" * 100_000)
    assert metadata.flags == ("metadata_unreadable",)
    assert "deeper than 128" in (metadata.problem or "")


def test_leaves_of_all_json_values_together() -> None:
    items = [make_item("a", "json", list(range(200))), make_item("b", "json", list(range(200)))]
    metadata = read([*items, make_item("c", "int", "5")])
    names = [leaf.name for leaf in metadata.leaves]
    assert (names.count("a[]"), names.count("b[]"), names.count("c")) == (200, 56, 1)
    assert list_flags(metadata) == {"a": (), "b": ("leaves_capped",), "c": ()}
    assert metadata.flags == ("metadata_leaves_capped",)
    metadata = read_item(
        "json", {f"n{number}": None if number % 2 else [] for number in range(300)}
    )
    assert len(metadata.presences) == 1 + 256
    assert list_flags(metadata) == {"k": ("leaves_capped",)}
    assert list_flags(read_item("json", list(range(256)))) == {"k": ()}
    assert list_flags(read_item("json", list(range(257)))) == {"k": ("leaves_capped",)}


def test_large_blobs_and_sections_are_bounded() -> None:
    blob = json.dumps([make_item("a", "str", "x" * 2_000_000)]).encode()
    metadata = read_metadata(blob)
    assert (metadata.entries, metadata.flags) == ((), ("metadata_too_large",))
    assert "1048576" in (metadata.problem or "")
    # Looking for each name in the whole text would be quadratic: half a minute.
    section = {f"k{number}": number for number in range(60_000)}
    metadata = read({"standard_metadata": section})
    assert len(metadata.leaves) == 256


# Entries survive their column: NUL, lone surrogates and huge exponents included.

_TEXT = st.text(st.characters())  # surrogates too
_ENTRIES = st.builds(
    Entry,
    key=_TEXT,
    type=_TEXT,
    value=st.none() | _TEXT | st.sampled_from(["1e200000", "a\0b", "\ud800"]),
    section=st.sampled_from(["standard", "extended"]),
    flags=st.lists(st.sampled_from(["not_int", "duplicate_key"])).map(tuple),
)


@given(st.lists(_ENTRIES))
def test_there_and_back(entries: list[Entry]) -> None:
    assert decode_entries(encode_entries(entries)) == tuple(entries)


def test_entries_are_stored_as_the_familiar_list_with_all_of_their_parts() -> None:
    stored = encode_entries([Entry("a", "int", "1", "extended")])
    assert stored == b'[{"key":"a","type":"int","value":"1"}]'
    for value in ("1", None, "\ud800"):
        for flags in ((), ("one", "two")):
            for section in ("extended", "standard"):
                entry = Entry("a", "int", value, section, flags)
                [listed] = list_entries(encode_entries([entry]))
                assert list(listed) == list(Entry._fields), value
                assert listed == entry._asdict() | {"flags": listed["flags"]}, value
                assert tuple(listed["flags"]) == flags, value
