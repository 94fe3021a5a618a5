"""Suggestions cost little, whatever was asked: few and short names are compared."""

from collections.abc import Iterator

from inference_store.inference.nearest import (
    LONGEST,
    MOST_COMPARED,
    MOST_TOLD,
    each_told,
    nearest,
    shortened,
)


def test_the_most_alike_come_first() -> None:
    known = ["frame_rate", "frame_number", "width"]
    assert nearest("frame_numer", known, limit=2) == ["frame_number", "frame_rate"]
    assert nearest("zzz", known, limit=2) == []


def test_of_few_all_are_told() -> None:
    assert nearest("frame_numer", ["width", "frame_number"]) == ["frame_number", "width"]
    assert nearest("n", ["m"]) == ["m"]


def test_a_long_name_is_compared_with_none_and_none_with_a_long_one() -> None:
    read = []

    def known() -> Iterator[str]:
        for name in ("a", "b"):
            read.append(name)
            yield name

    assert nearest("a" * (LONGEST + 1), known()) == []
    assert read == []
    longest = "a" * LONGEST
    assert nearest(longest, [longest + "a", longest]) == [longest]


def test_no_more_are_compared_than_a_number() -> None:
    names = iter(["b"] * MOST_COMPARED + ["a"])
    assert nearest("a", names) == []
    assert list(names) == ["a"]


def test_a_thousand_long_names_are_told_as_nine_short_warnings() -> None:
    known = [f"label-{n}" for n in range(10_000)]
    asked, names = [], [f"{n:04}" + "x" * 90_000 for n in range(1_000)]

    def told(name: str) -> str:
        asked.append(name)
        return f"{shortened(name)}{nearest(name, known)}"

    said = each_told(names, told)
    assert asked == names[:MOST_TOLD]
    assert len(said) == MOST_TOLD + 1
    assert said[-1] == "And 992 more are not there."
    assert sum(map(len, said)) < 3_000


def test_few_names_are_each_told() -> None:
    assert each_told([], str) == []
    assert each_told(["a", "b"], str) == ["a", "b"]
