"""A key is there if it was sent, whatever its value: each rule is a test."""

from typing import Any

import pytest

from .samples import entry_flags, item, leaves, one, presences, read


def test_a_typed_value_needs_no_presence() -> None:
    for kind, value in (("str", "x"), ("int", "1"), ("bool", "true"), ("date", "2026-11-01")):
        assert presences(one(kind, value)) == {}


@pytest.mark.parametrize("kind", ["string", "int", "float", "bool", "timestamp", "json", "", "x"])
def test_null_is_present_and_null(kind: str) -> None:
    found = one(kind, None)
    assert presences(found) == {"k": True}
    assert leaves(found) == []
    assert found.entries[0].value is None


def test_null_as_json_text_is_present_and_null() -> None:
    assert presences(one("json", "null")) == {"k": True}
    assert one("json", "null").entries[0].value == "null"


def test_null_as_text_of_a_string_is_text() -> None:
    assert leaves(one("string", "null")) == [("k", "string", "null")]


def test_a_missing_value_is_null_and_flagged() -> None:
    found = read([{"key": "k", "type": "int"}])
    assert presences(found) == {"k": True}
    assert entry_flags(found) == {"k": ("no_value",)}


@pytest.mark.parametrize("value", [[], {}, "[]", "{}"])
def test_empty_arrays_and_objects_are_present_and_not_null(value: Any) -> None:
    assert presences(one("json", value)) == {"k": False}


def test_inside_a_json_value_the_same_holds_for_paths() -> None:
    found = one("json", {"null": None, "empty": [], "inner": {"x": 1}, "list": [None]})
    assert presences(found) == {
        "k": False,
        "k.null": True,
        "k.empty": False,
        "k.inner": False,
        "k.list": False,
        "k.list[]": True,
    }


def test_a_null_beside_a_value_of_the_same_name_says_nothing() -> None:
    assert presences(one("json", [None, 1])) == {"k": False}
    assert presences(one("json", [None, []])) == {"k": False, "k[]": False}


def test_a_value_that_could_not_be_typed_is_present() -> None:
    assert presences(one("int", "abc")) == {"k": False}


def test_a_json_scalar_has_the_presence_of_its_root() -> None:
    assert presences(one("json", "5")) == {"k": False}


def test_names_are_unique() -> None:
    found = read([item("a", "json", [[], [], {"x": None}, {"x": []}]), item("a.x", "int", "no")])
    names = [presence.name for presence in found.presences]
    assert len(names) == len(set(names))
