"""JSON values are their leaves, by path."""

from decimal import Decimal
from typing import Any

import pytest

from inference_store.inference.metadata import read_metadata

from .samples import entry_flags, item, leaves, one, presences, read


def test_the_references_own_example_is_text_and_number() -> None:
    found = one("json", '{"angle": "10.5", "tilt": 1.6}', "camera_position")
    assert leaves(found) == [
        ("camera_position.angle", "string", "10.5"),
        ("camera_position.angle", "number", Decimal("10.5")),
        ("camera_position.tilt", "number", Decimal("1.6")),
    ]
    assert [leaf.flags for leaf in found.leaves] == [(), ("from_text",), ()]
    assert presences(found) == {"camera_position": False}


@pytest.mark.parametrize("text", ["10.5 ", "x10", "NaN", "1_0", "2026-11-01", ""])
def test_text_that_is_not_wholly_a_number_is_text_only(text: str) -> None:
    assert leaves(one("json", {"a": text})) == [("k.a", "string", text)]


@pytest.mark.parametrize("kind", ["json", "dict", "object"])
@pytest.mark.parametrize("as_text", [True, False])
def test_objects_and_strings_of_json_say_the_same(kind: str, as_text: bool) -> None:
    found = one(kind, '{"a": {"b": 1.10}}' if as_text else {"a": {"b": 1.1}})
    assert leaves(found) == [("k.a.b", "number", Decimal("1.1"))]


def test_elements_of_arrays() -> None:
    found = one("json", {"tags": ["a", "b", "a"], "grid": [[1, 2], [3]], "o": [{"x": 1}]})
    assert leaves(found) == [
        ("k.tags[]", "string", "a"),
        ("k.tags[]", "string", "b"),
        ("k.grid[][]", "number", 1),
        ("k.grid[][]", "number", 2),
        ("k.grid[][]", "number", 3),
        ("k.o[].x", "number", 1),
    ]
    assert leaves(one("json", ["a"], "tags")) == [("tags[]", "string", "a")]


def test_of_two_paths_that_are_spelled_alike_the_last_is_the_value() -> None:
    found = one("json", {"a": {"b.c": "1"}, "a.b": {"c": 2}})
    assert leaves(found) == [("k.a.b.c", "number", 2)]
    found = read([item("a", "json", {"b.c": 1}), item("a.b", "json", {"c": "2"})])
    assert leaves(found) == [("a.b.c", "string", "2"), ("a.b.c", "number", 2)]
    assert presences(one("json", {"a": {"b.c": {"d": 1}}, "a.b": {"c": None}}))["k.a.b.c"]


def test_equal_numbers_are_one_leaf_and_true_is_not_1() -> None:
    assert leaves(read_metadata(b'[{"key":"k","type":"json","value":[1,1.0,1e0,true]}]')) == [
        ("k[]", "number", 1),
        ("k[]", "bool", True),
    ]


def test_numbers_are_exact() -> None:
    text = "[12345678901234567890123, 0.1000000000000000055511]"
    for value in (f'"{text}"', text):
        found = read_metadata(b'[{"key":"k","type":"json","value":%s}]' % value.encode())
        assert [str(leaf.value) for leaf in found.leaves] == text[1:-1].split(", ")


def test_a_literal_key_with_dots_wins_over_a_path() -> None:
    for items in (
        [item("a.b", "str", "literal"), item("a", "json", {"b": "path", "c": 1})],
        [item("a", "json", {"b": "path", "c": 1}), item("a.b", "str", "literal")],
    ):
        found = read(items)
        assert sorted(leaves(found)) == [("a.b", "string", "literal"), ("a.c", "number", 1)]


def test_a_literal_key_wins_even_when_its_own_value_is_not_indexed() -> None:
    found = read([item("a.b", "float", "NaN"), item("a", "json", {"b": 1})])
    assert leaves(found) == [("a.b", "string", "NaN")]
    assert presences(found) == {"a": False, "a.b": False}


def test_within_a_value_the_spelling_with_fewer_names_wins() -> None:
    assert leaves(one("json", {"b.c": 1, "b": {"c": 2}})) == [("k.b.c", "number", 1)]


def test_names_given_twice_in_a_json_value_are_flagged() -> None:
    found = one("json", '{"a": 1, "a": 2}')
    assert leaves(found) == [("k.a", "number", 2)]
    assert entry_flags(found) == {"k": ("duplicate_key",)}


@pytest.mark.parametrize(
    ("value", "flag"),
    [
        ("[1e999]", "number_too_large"),
        (r'["\ud800"]', "lone_surrogate"),
        (r'["\u0000"]', "nul_character"),
    ],
)
def test_leaves_that_cannot_be_indexed_are_present(value: str, flag: str) -> None:
    found = one("json", value)
    assert leaves(found) == []
    assert presences(found) == {"k": False, "k[]": False}
    assert entry_flags(found) == {"k": (flag,)}


@pytest.mark.parametrize("spelt", ["NaN", "Infinity", "-Infinity"])
def test_numbers_of_json_that_are_not_finite_are_found_as_text(spelt: str) -> None:
    found = one("json", f"[1, {spelt}]")
    assert leaves(found) == [("k[]", "number", 1), ("k[]", "string", spelt)]
    assert presences(found) == {"k": False, "k[]": False}
    assert entry_flags(found) == {"k": ("not_finite",)}


@pytest.mark.parametrize(
    ("name", "flag"), [("x" * 255, "key_too_long"), ("\ud800", "key_not_text")]
)
def test_paths_that_cannot_be_names_are_flagged(name: str, flag: str) -> None:
    found = one("json", {name: 1, "ok": 2})
    assert leaves(found) == [("k.ok", "number", 2)]
    assert entry_flags(found) == {"k": (flag,)}


@pytest.mark.parametrize("value", [{"a": 1}, [1], '{"a": 1}'])
def test_the_value_is_kept_as_json_text(value: Any) -> None:
    texts = {"{'a': 1}": '{"a": 1}', "[1]": "[1]"}
    found = one("json", value)
    assert found.entries[0].value == texts.get(str(value), value)
