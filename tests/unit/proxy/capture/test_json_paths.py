"""Paths into JSON."""

from typing import Any

import pytest

from inference_store.proxy.capture.json_paths import GONE, change_at, steps_of


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
    assert steps_of(path) == steps


@pytest.mark.parametrize("path", ["", ".", "a[0]", "a[", 'a."b'])
def test_what_is_no_path_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match="path"):
        steps_of(path)


@pytest.mark.parametrize(
    ("path", "left"),
    [
        ("a", {"b": [{"c": 2, "d": 3}, {"c": 4}, 5]}),
        ("b[].c", {"a": 1, "b": [{"d": 3}, {}, 5]}),
        ("b[]", {"a": 1, "b": []}),
        ("b", {"a": 1}),
        ("x.y", {"a": 1, "b": [{"c": 2, "d": 3}, {"c": 4}, 5]}),
        ("a[].b", {"a": 1, "b": [{"c": 2, "d": 3}, {"c": 4}, 5]}),
    ],
)
def test_taking_out(path: str, left: Any) -> None:
    document = {"a": 1, "b": [{"c": 2, "d": 3}, {"c": 4}, 5]}
    change_at(document, steps_of(path), lambda _: GONE)
    assert document == left


def test_changing() -> None:
    document = {"b": [{"c": 2}, {"c": 4}]}
    change_at(document, steps_of("b[].c"), lambda value: value + 1)
    assert document == {"b": [{"c": 3}, {"c": 5}]}
