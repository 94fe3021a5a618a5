"""JSON values are their leaves, by path; and a key is there if it was sent, whatever its value."""

import json
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from inference_store.inference.json_text import storable
from inference_store.inference.metadata import (
    METADATA_TYPES,
    Leaf,
    Metadata,
    MetadataCaps,
    Presence,
    decode_entries,
    encode_entries,
    read_metadata,
)
from tests.properties import draw_json

from .samples import list_flags, list_leaves, list_presences, make_item, read, read_item

NO_LEAVES: list[tuple[str, str, Any]] = []


class Case(NamedTuple):
    """A value of the key `k`: its leaves; its presences; the entry's flags."""

    kind: str
    value: Any
    leaves: list[tuple[str, str, Any]]
    presences: dict[str, bool]
    flags: tuple[str, ...] = ()


IS_THERE, IS_NULL = {"k": False}, {"k": True}
ITS_LEAF = {"k": False, "k[]": False}
ARRAYS = {"tags": ["a", "b", "a"], "grid": [[1, 2], [3]], "o": [{"x": 1}]}
TWICE = '{"a": 1, "a": 2}'
NESTED = {"null": None, "empty": [], "inner": {"x": 1}, "list": [None]}
TABLE = {
    "a text": Case("str", "x", [("k", "string", "x")], {}),
    "a whole number": Case("int", "1", [("k", "number", 1)], {}),
    "a boolean": Case("bool", "true", [("k", "bool", True)], {}),
    "null as JSON text": Case("json", "null", NO_LEAVES, IS_NULL),
    "null as the text of a string": Case("string", "null", [("k", "string", "null")], {}),
    "an empty array": Case("json", [], NO_LEAVES, IS_THERE),
    "an empty object": Case("json", {}, NO_LEAVES, IS_THERE),
    "an empty array in a text": Case("json", "[]", NO_LEAVES, IS_THERE),
    "an empty object in a text": Case("json", "{}", NO_LEAVES, IS_THERE),
    "a JSON scalar": Case("json", "5", [("k", "number", 5)], IS_THERE),
    "a null beside a value": Case("json", [None, 1], [("k[]", "number", 1)], IS_THERE),
    "a null beside an empty array": Case("json", [None, []], NO_LEAVES, ITS_LEAF),
    "names inside": Case(
        "json",
        NESTED,
        [("k.inner.x", "number", 1)],
        {
            **{"k": False, "k.null": True, "k.empty": False, "k.inner": False},
            **{"k.list": False, "k.list[]": True},
        },
    ),
    "a text that is a number": Case(
        "json",
        '{"angle": "10.5", "tilt": 1.6}',
        [
            ("k.angle", "string", "10.5"),
            ("k.angle", "number", Decimal("10.5")),
            ("k.tilt", "number", Decimal("1.6")),
        ],
        IS_THERE,
    ),
    "elements of arrays": Case(
        "json",
        ARRAYS,
        [
            *(("k.tags[]", "string", tag) for tag in "ab"),
            *(("k.grid[][]", "number", number) for number in (1, 2, 3)),
            ("k.o[].x", "number", 1),
        ],
        {"k": False, "k.tags": False, "k.grid": False, "k.grid[]": False}
        | {"k.o": False, "k.o[]": False},
    ),
    "two equal paths": Case(
        "json",
        {"a": {"b.c": "1"}, "a.b": {"c": 2}},
        [("k.a.b.c", "string", "1"), ("k.a.b.c", "number", 1), ("k.a.b.c", "number", 2)],
        {"k": False, "k.a": False, "k.a.b": False},
    ),
    "a name given twice": Case(
        "json", TWICE, [("k.a", "number", 1), ("k.a", "number", 2)], IS_THERE, ("duplicate_key",)
    ),
    "equal numbers and true": Case(
        "json", "[1,1.0,1e0,true]", [("k[]", "number", 1), ("k[]", "bool", True)], IS_THERE
    ),
    "a number over a cap": Case("json", "[1e999]", NO_LEAVES, ITS_LEAF, ("number_too_large",)),
    "half a character": Case("json", r'["\ud800"]', NO_LEAVES, ITS_LEAF, ("lone_surrogate",)),
    "a NUL": Case("json", r'["\u0000"]', NO_LEAVES, ITS_LEAF, ("nul_character",)),
    "a name that is too long": Case(
        "json", {"x" * 255: 1}, NO_LEAVES, {"k": False, "k." + "x" * 253 + "…": False}
    )._replace(flags=("key_too_long",)),
    "a name that is no text": Case("json", {"\ud800": 1}, NO_LEAVES, IS_THERE, ("key_not_text",)),
}


def test_the_table() -> None:
    for case, (kind, value, leaves, presences, flags) in TABLE.items():
        metadata = read_item(kind, value)
        assert list_leaves(metadata) == leaves, case
        assert list_presences(metadata) == presences, case
        assert list_flags(metadata) == {"k": flags}, case


def test_objects_and_strings_of_json_say_the_same() -> None:
    for kind in ("json", "dict", "object"):
        for value in ('{"a": {"b": 1.10}}', {"a": {"b": 1.1}}):
            metadata = read_item(kind, value)
            assert list_leaves(metadata) == [("k.a.b", "number", Decimal("1.1"))], (kind, value)
    for document, text in (({"a": 1}, '{"a": 1}'), ([1], "[1]"), ('{"a": 1}', '{"a": 1}')):
        assert read_item("json", document).entries[0].value == text
    assert read_item("json", "null").entries[0].value == "null"


def test_numbers_are_exact_and_others_are_found_as_text() -> None:
    text = "[12345678901234567890123, 0.1000000000000000055511]"
    for value in (f'"{text}"', text):
        metadata = read_metadata(b'[{"key":"k","type":"json","value":%s}]' % value.encode())
        assert [str(leaf.value) for leaf in metadata.leaves] == text[1:-1].split(", ")
    for spelt in ("NaN", "Infinity", "-Infinity"):
        metadata = read_item("json", f"[1, {spelt}]")
        assert list_leaves(metadata) == [("k[]", "number", 1), ("k[]", "string", spelt)]
        assert list_presences(metadata) == {"k": False, "k[]": False}, spelt
        assert list_flags(metadata) == {"k": ("not_finite",)}, spelt
    metadata = read_item("json", '{"angle": "10.5", "tilt": 1.6}')
    assert [leaf.flags for leaf in metadata.leaves] == [(), ("from_text",), ()]
    for text in ("10.5 ", "x10", "NaN", "1_0", "2026-11-01", ""):
        assert list_leaves(read_item("json", {"a": text})) == [("k.a", "string", text)]


def test_names_are_unique_and_a_key_with_dots_is_one_with_its_path() -> None:
    metadata = read([make_item("a.b", "float", "NaN"), make_item("a", "json", {"b": 1})])
    assert list_leaves(metadata) == [("a.b", "string", "NaN"), ("a.b", "number", 1)]
    assert list_presences(metadata) == {"a": False, "a.b": False}
    value = [[], [], {"x": None}, {"x": []}]
    metadata = read([make_item("a", "json", value), make_item("a.x", "int", "no")])
    names = [presence.name for presence in metadata.presences]
    assert len(names) == len(set(names))


def test_null_or_no_value_is_present_and_null() -> None:
    for kind in ("string", "int", "float", "bool", "timestamp", "json", "", "x"):
        metadata = read_item(kind, None)
        assert list_presences(metadata) == IS_NULL, kind
        assert list_leaves(metadata) == [], kind
        assert metadata.entries[0].value is None, kind
    metadata = read([{"key": "k", "type": "int"}])
    assert list_presences(metadata) == IS_NULL
    assert list_flags(metadata) == {"k": ("no_value",)}


# Whatever the bytes: no error, nothing that Postgres could not hold, nothing twice.

CAPS = MetadataCaps()
_NAMES = [name for entry in METADATA_TYPES.values() for name in entry.accepted]
_TEXT = st.text(st.characters(), max_size=12) | st.sampled_from(
    ["987", "1e999", "1e200000", "NaN", "true", "2026-11-01T00:00:00Z", '{"a": [1]}', "\0"]
)
_SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | _TEXT
_VALUE = draw_json(_SCALARS, _TEXT, leaves=12)
_KEY = st.sampled_from(["a", "a.b", "a[]", "latitude", "dataset_split"]) | _TEXT
_ITEM = st.fixed_dictionaries(
    {"key": _KEY, "type": st.sampled_from(_NAMES) | _TEXT, "value": _VALUE | _VALUE.map(json.dumps)}
)
_LIST = st.lists(_ITEM | _VALUE, max_size=5)
_SECTIONS = st.fixed_dictionaries(
    {}, optional={"standard_metadata": _VALUE | _LIST, "extended_metadata": _LIST | _VALUE}
)
_DOCUMENT = (
    _LIST
    | _SECTIONS
    | _VALUE
    | st.fixed_dictionaries(
        {"metadata": _LIST | _SECTIONS | _LIST.map(json.dumps), "event": _VALUE}
    )
)


def _is_fit_for_postgres(metadata: Metadata) -> None:
    assert len(metadata.leaves) == len(
        {(row.name, row.family, row.value) for row in metadata.leaves}
    )
    assert len(metadata.presences) == len({row.name for row in metadata.presences})
    rows: list[Leaf | Presence] = [*metadata.leaves, *metadata.presences]
    for row in rows:
        assert row.name
        assert len(row.name) <= CAPS.key_characters
        assert storable(row.name)
        assert all(type(flag) is str and flag for flag in row.flags)
    for leaf in metadata.leaves:
        if leaf.family == "number":
            assert isinstance(leaf.value, Decimal)
            assert leaf.value.is_finite()
        elif leaf.family == "string":
            assert isinstance(leaf.value, str)
            assert storable(leaf.value)
        elif leaf.family == "bool":
            assert type(leaf.value) is bool
        else:
            assert isinstance(leaf.value, datetime)
            assert leaf.value.utcoffset() == timedelta(0)
    assert storable(metadata.problem or "")
    assert decode_entries(encode_entries(metadata.entries)) == metadata.entries


@given(st.binary(max_size=300))
def test_any_bytes(blob: bytes) -> None:
    _is_fit_for_postgres(read_metadata(blob, response=blob))


@given(_DOCUMENT)
def test_any_document(document: Any) -> None:
    _is_fit_for_postgres(read_metadata(json.dumps(document).encode()))


@given(_DOCUMENT, _VALUE)
def test_any_response(metadata: Any, parameters: Any) -> None:
    document = {"outputs": [{"data": [], "parameters": {"metadata": metadata, "x": parameters}}]}
    response = json.dumps(document).encode()
    _is_fit_for_postgres(read_metadata(None, response=response))


@given(_LIST, st.data())
def test_any_damage(document: Any, data: st.DataObject) -> None:
    blob = bytearray(json.dumps(document).encode())
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(0, len(blob) - 1))
        blob[position] = data.draw(st.integers(0, 255))
    _is_fit_for_postgres(read_metadata(bytes(blob[: data.draw(st.integers(0, len(blob)))])))


@given(st.lists(_ITEM, max_size=5))
def test_every_key_that_was_sent_is_there(items: list[dict[str, Any]]) -> None:
    """Leaf or presence, for every key that can be a name."""
    metadata = read_metadata(json.dumps(items).encode())
    names = {leaf.name for leaf in metadata.leaves} | {
        presence.name for presence in metadata.presences
    }
    for key in {item["key"] for item in items}:
        if key and storable(key):
            assert {"dataset_split": "dataset_snapshot_split"}.get(key, key) in names
