"""A number and its noun agree."""

from inference_store.inference.plural import counted


def test_a_number_and_its_noun() -> None:
    for number, words, expected in (
        (1, ("span",), "1 span"),
        (0, ("span",), "0 spans"),
        (2, ("span",), "2 spans"),
        (1, ("entry is", "entries are"), "1 entry is"),
        (7, ("entry is", "entries are"), "7 entries are"),
    ):
        assert counted(number, *words) == expected
