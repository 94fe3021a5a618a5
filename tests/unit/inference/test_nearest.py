"""Suggestions cost little, whatever was asked: few and short names are compared."""

from collections.abc import Iterator

from inference_store.inference.nearest import (
    LONGEST,
    MOST_COMPARED,
    MOST_WARNED,
    describe_nearest,
    list_warnings,
    nearest,
)


def test_the_most_alike_come_first_and_a_few_are_all_listed() -> None:
    candidates = ["frame_rate", "frame_number", "width"]
    assert nearest("frame_numer", candidates, limit=2) == ["frame_number", "frame_rate"]
    assert nearest("zzz", candidates, limit=2) == []
    assert nearest("FRAME_NUMBER", candidates, limit=2) == ["frame_number", "frame_rate"]
    assert nearest("frame_numer", ["width", "frame_number"]) == ["frame_number", "width"]
    assert nearest("n", ["m"]) == ["m"]
    assert describe_nearest(["width"], ["width", "height"]) == "the nearest is width"
    assert describe_nearest([], ["width", "height"]) == "known are width, height"


def test_few_and_short_names_are_compared() -> None:
    read = []

    def generate_names() -> Iterator[str]:
        for name in ("a", "b"):
            read.append(name)
            yield name

    assert nearest("a" * (LONGEST + 1), generate_names()) == []
    assert read == []
    longest = "a" * LONGEST
    assert nearest(longest, [longest + "a", longest]) == [longest]
    names = iter(["b"] * MOST_COMPARED + ["a"])
    assert nearest("a", names) == []
    assert list(names) == ["a"]


def test_warnings_are_nine_short_ones_or_one_a_name() -> None:
    labels = [f"label-{n}" for n in range(10_000)]
    names = [f"{n:04}" + "x" * 90_000 for n in range(1_000)]
    warnings = list_warnings("There is no label", names, labels)
    assert [text.split("'")[1][:4] for text in warnings[:-1]] == [
        n[:4] for n in names[:MOST_WARNED]
    ]
    assert warnings[-1] == "992 more names are unknown."
    assert sum(map(len, warnings)) < 3_000
    assert list_warnings("No", [], labels) == []
    assert list_warnings("No", ["label-x"], ["label-y"]) == [
        "No 'label-x'. The nearest is label-y."
    ]
