"""Paths into JSON."""

import pytest

from inference_store.proxy.capture.json_paths import GONE, change_values, parse_path


def test_steps() -> None:
    for path, steps in (
        ("a", ("a",)),
        ("inputs[].parameters.user", ("inputs", "[]", "parameters", "user")),
        ("tags[]", ("tags", "[]")),
        ("[].a", ("[]", "a")),
        ('a."b.c".d', ("a", "b.c", "d")),
        ('"say \\"x\\""', ('say "x"',)),
    ):
        assert parse_path(path) == steps


def test_rejects_malformed_paths() -> None:
    for path in ("", ".", "a[0]", "a[", 'a."b'):
        with pytest.raises(ValueError, match="path"):
            parse_path(path)


def test_taking_out() -> None:
    for path, remaining in (
        ("a", {"b": [{"c": 2, "d": 3}, {"c": 4}, 5]}),
        ("b[].c", {"a": 1, "b": [{"d": 3}, {}, 5]}),
        ("b[]", {"a": 1, "b": []}),
        ("b", {"a": 1}),
        ("x.y", {"a": 1, "b": [{"c": 2, "d": 3}, {"c": 4}, 5]}),
        ("a[].b", {"a": 1, "b": [{"c": 2, "d": 3}, {"c": 4}, 5]}),
    ):
        document = {"a": 1, "b": [{"c": 2, "d": 3}, {"c": 4}, 5]}
        change_values(document, parse_path(path), lambda _: GONE)
        assert document == remaining, path


def test_changing() -> None:
    document = {"b": [{"c": 2}, {"c": 4}]}
    change_values(document, parse_path("b[].c"), lambda value: value + 1)
    assert document == {"b": [{"c": 3}, {"c": 5}]}
