"""A key is there if it was sent, whatever its value: each rule is a test."""

from typing import Any

import pytest

from .samples import list_flags, list_leaves, list_presences, make_item, read, read_item


def test_a_typed_value_needs_no_presence() -> None:
    for kind, value in (("str", "x"), ("int", "1"), ("bool", "true"), ("date", "2026-11-01")):
        assert list_presences(read_item(kind, value)) == {}


@pytest.mark.parametrize("kind", ["string", "int", "float", "bool", "timestamp", "json", "", "x"])
def test_null_is_present_and_null(kind: str) -> None:
    metadata = read_item(kind, None)
    assert list_presences(metadata) == {"k": True}
    assert list_leaves(metadata) == []
    assert metadata.entries[0].value is None


def test_null_as_json_text_is_present_and_null() -> None:
    assert list_presences(read_item("json", "null")) == {"k": True}
    assert read_item("json", "null").entries[0].value == "null"


def test_null_as_text_of_a_string_is_text() -> None:
    assert list_leaves(read_item("string", "null")) == [("k", "string", "null")]


def test_a_missing_value_is_null_and_flagged() -> None:
    metadata = read([{"key": "k", "type": "int"}])
    assert list_presences(metadata) == {"k": True}
    assert list_flags(metadata) == {"k": ("no_value",)}


@pytest.mark.parametrize("value", [[], {}, "[]", "{}"])
def test_empty_arrays_and_objects_are_present_and_not_null(value: Any) -> None:
    assert list_presences(read_item("json", value)) == {"k": False}


def test_inside_a_json_value_the_same_holds_for_paths() -> None:
    metadata = read_item("json", {"null": None, "empty": [], "inner": {"x": 1}, "list": [None]})
    assert list_presences(metadata) == {
        "k": False,
        "k.null": True,
        "k.empty": False,
        "k.inner": False,
        "k.list": False,
        "k.list[]": True,
    }


def test_a_null_beside_a_value_of_the_same_name_is_ignored() -> None:
    assert list_presences(read_item("json", [None, 1])) == {"k": False}
    assert list_presences(read_item("json", [None, []])) == {"k": False, "k[]": False}


def test_a_value_that_could_not_be_typed_is_present() -> None:
    assert list_presences(read_item("int", "abc")) == {"k": False}


def test_a_json_scalar_has_the_presence_of_its_root() -> None:
    assert list_presences(read_item("json", "5")) == {"k": False}


def test_names_are_unique() -> None:
    metadata = read(
        [make_item("a", "json", [[], [], {"x": None}, {"x": []}]), make_item("a.x", "int", "no")]
    )
    names = [presence.name for presence in metadata.presences]
    assert len(names) == len(set(names))
