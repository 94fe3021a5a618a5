"""A number and its noun agree."""

import pytest

from inference_store.inference.plural import counted


@pytest.mark.parametrize(
    ("number", "words", "expected"),
    [
        (1, ("span",), "1 span"),
        (0, ("span",), "0 spans"),
        (2, ("span",), "2 spans"),
        (1, ("entry is", "entries are"), "1 entry is"),
        (7, ("entry is", "entries are"), "7 entries are"),
    ],
)
def test_a_number_and_its_noun(number: int, words: tuple[str, ...], expected: str) -> None:
    assert counted(number, *words) == expected
