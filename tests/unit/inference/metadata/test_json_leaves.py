"""JSON values are their leaves, by path."""

from decimal import Decimal
from typing import Any

import pytest

from inference_store.inference.metadata import read_metadata

from .samples import list_flags, list_leaves, list_presences, make_item, read, read_item


def test_the_references_own_example_is_text_and_number() -> None:
    metadata = read_item("json", '{"angle": "10.5", "tilt": 1.6}', "camera_position")
    assert list_leaves(metadata) == [
        ("camera_position.angle", "string", "10.5"),
        ("camera_position.angle", "number", Decimal("10.5")),
        ("camera_position.tilt", "number", Decimal("1.6")),
    ]
    assert [leaf.flags for leaf in metadata.leaves] == [(), ("from_text",), ()]
    assert list_presences(metadata) == {"camera_position": False}


@pytest.mark.parametrize("text", ["10.5 ", "x10", "NaN", "1_0", "2026-11-01", ""])
def test_text_that_is_not_wholly_a_number_is_text_only(text: str) -> None:
    assert list_leaves(read_item("json", {"a": text})) == [("k.a", "string", text)]


@pytest.mark.parametrize("kind", ["json", "dict", "object"])
@pytest.mark.parametrize("as_text", [True, False])
def test_objects_and_strings_of_json_say_the_same(kind: str, as_text: bool) -> None:
    metadata = read_item(kind, '{"a": {"b": 1.10}}' if as_text else {"a": {"b": 1.1}})
    assert list_leaves(metadata) == [("k.a.b", "number", Decimal("1.1"))]


def test_elements_of_arrays() -> None:
    metadata = read_item("json", {"tags": ["a", "b", "a"], "grid": [[1, 2], [3]], "o": [{"x": 1}]})
    assert list_leaves(metadata) == [
        ("k.tags[]", "string", "a"),
        ("k.tags[]", "string", "b"),
        ("k.grid[][]", "number", 1),
        ("k.grid[][]", "number", 2),
        ("k.grid[][]", "number", 3),
        ("k.o[].x", "number", 1),
    ]
    assert list_leaves(read_item("json", ["a"], "tags")) == [("tags[]", "string", "a")]


def test_the_last_of_two_equal_paths_wins() -> None:
    metadata = read_item("json", {"a": {"b.c": "1"}, "a.b": {"c": 2}})
    assert list_leaves(metadata) == [("k.a.b.c", "number", 2)]
    metadata = read([make_item("a", "json", {"b.c": 1}), make_item("a.b", "json", {"c": "2"})])
    assert list_leaves(metadata) == [("a.b.c", "string", "2"), ("a.b.c", "number", 2)]
    assert list_presences(read_item("json", {"a": {"b.c": {"d": 1}}, "a.b": {"c": None}}))[
        "k.a.b.c"
    ]


def test_equal_numbers_are_one_leaf_and_true_is_not_1() -> None:
    assert list_leaves(read_metadata(b'[{"key":"k","type":"json","value":[1,1.0,1e0,true]}]')) == [
        ("k[]", "number", 1),
        ("k[]", "bool", True),
    ]


def test_numbers_are_exact() -> None:
    text = "[12345678901234567890123, 0.1000000000000000055511]"
    for value in (f'"{text}"', text):
        metadata = read_metadata(b'[{"key":"k","type":"json","value":%s}]' % value.encode())
        assert [str(leaf.value) for leaf in metadata.leaves] == text[1:-1].split(", ")


def test_a_literal_key_with_dots_wins_over_a_path() -> None:
    for items in (
        [make_item("a.b", "str", "literal"), make_item("a", "json", {"b": "path", "c": 1})],
        [make_item("a", "json", {"b": "path", "c": 1}), make_item("a.b", "str", "literal")],
    ):
        metadata = read(items)
        assert sorted(list_leaves(metadata)) == [("a.b", "string", "literal"), ("a.c", "number", 1)]


def test_a_literal_key_wins_even_when_its_own_value_is_not_indexed() -> None:
    metadata = read([make_item("a.b", "float", "NaN"), make_item("a", "json", {"b": 1})])
    assert list_leaves(metadata) == [("a.b", "string", "NaN")]
    assert list_presences(metadata) == {"a": False, "a.b": False}


def test_within_a_value_the_spelling_with_fewer_names_wins() -> None:
    assert list_leaves(read_item("json", {"b.c": 1, "b": {"c": 2}})) == [("k.b.c", "number", 1)]


def test_names_given_twice_in_a_json_value_are_flagged() -> None:
    metadata = read_item("json", '{"a": 1, "a": 2}')
    assert list_leaves(metadata) == [("k.a", "number", 2)]
    assert list_flags(metadata) == {"k": ("duplicate_key",)}


@pytest.mark.parametrize(
    ("value", "flag"),
    [
        ("[1e999]", "number_too_large"),
        (r'["\ud800"]', "lone_surrogate"),
        (r'["\u0000"]', "nul_character"),
    ],
)
def test_leaves_that_cannot_be_indexed_are_present(value: str, flag: str) -> None:
    metadata = read_item("json", value)
    assert list_leaves(metadata) == []
    assert list_presences(metadata) == {"k": False, "k[]": False}
    assert list_flags(metadata) == {"k": (flag,)}


@pytest.mark.parametrize("spelt", ["NaN", "Infinity", "-Infinity"])
def test_numbers_of_json_that_are_not_finite_are_found_as_text(spelt: str) -> None:
    metadata = read_item("json", f"[1, {spelt}]")
    assert list_leaves(metadata) == [("k[]", "number", 1), ("k[]", "string", spelt)]
    assert list_presences(metadata) == {"k": False, "k[]": False}
    assert list_flags(metadata) == {"k": ("not_finite",)}


@pytest.mark.parametrize(
    ("name", "flag"), [("x" * 255, "key_too_long"), ("\ud800", "key_not_text")]
)
def test_paths_that_cannot_be_names_are_flagged(name: str, flag: str) -> None:
    metadata = read_item("json", {name: 1, "ok": 2})
    assert list_leaves(metadata) == [("k.ok", "number", 2)]
    assert list_flags(metadata) == {"k": (flag,)}


@pytest.mark.parametrize("value", [{"a": 1}, [1], '{"a": 1}'])
def test_the_value_is_kept_as_json_text(value: Any) -> None:
    texts = {"{'a': 1}": '{"a": 1}', "[1]": "[1]"}
    metadata = read_item("json", value)
    assert metadata.entries[0].value == texts.get(str(value), value)
