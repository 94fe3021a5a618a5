"""Paths into JSON."""

from typing import Any

import pytest

from inference_store.proxy.capture.json_paths import GONE, change_values, parse_path


@pytest.mark.parametrize(
    ("path", "steps"),
    [
        ("a", ("a",)),
        ("inputs[].parameters.user", ("inputs", "[]", "parameters", "user")),
        ("tags[]", ("tags", "[]")),
        ("[].a", ("[]", "a")),
        ('a."b.c".d', ("a", "b.c", "d")),
        ('"say \\"x\\""', ('say "x"',)),
    ],
)
def test_steps(path: str, steps: tuple[str, ...]) -> None:
    assert parse_path(path) == steps


@pytest.mark.parametrize("path", ["", ".", "a[0]", "a[", 'a."b'])
def test_rejects_malformed_paths(path: str) -> None:
    with pytest.raises(ValueError, match="path"):
        parse_path(path)


@pytest.mark.parametrize(
    ("path", "remaining"),
    [
        ("a", {"b": [{"c": 2, "d": 3}, {"c": 4}, 5]}),
        ("b[].c", {"a": 1, "b": [{"d": 3}, {}, 5]}),
        ("b[]", {"a": 1, "b": []}),
        ("b", {"a": 1}),
        ("x.y", {"a": 1, "b": [{"c": 2, "d": 3}, {"c": 4}, 5]}),
        ("a[].b", {"a": 1, "b": [{"c": 2, "d": 3}, {"c": 4}, 5]}),
    ],
)
def test_taking_out(path: str, remaining: Any) -> None:
    document = {"a": 1, "b": [{"c": 2, "d": 3}, {"c": 4}, 5]}
    change_values(document, parse_path(path), lambda _: GONE)
    assert document == remaining


def test_changing() -> None:
    document = {"b": [{"c": 2}, {"c": 4}]}
    change_values(document, parse_path("b[].c"), lambda value: value + 1)
    assert document == {"b": [{"c": 3}, {"c": 5}]}
