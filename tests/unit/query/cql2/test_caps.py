"""Hostile filters: refused by name, in bounded time, and never by the end of Python's stack."""

import sys
import time
from collections.abc import Callable

import pytest

from inference_store.inference.errors import InvalidFilter, NotKept
from inference_store.query.cql2 import parse_json, parse_text, to_json, to_text
from inference_store.query.cql2.tree import (
    MOST_BYTES,
    MOST_DEPTH,
    MOST_ITEMS,
    MOST_NODES,
    MOST_POSITIONS,
    MOST_TOKENS,
    Named,
    Node,
    Operation,
)

PER_KB = 0.05  # seconds


def repeat(piece: str) -> str:
    return piece * (MOST_BYTES // len(piece.encode()))


# With each, that which is like it: all brackets, all quotes, all names.
_PIECES = [
    "(", ")", "NOT ", "-", "a AND ", "'", '"', "[", "POINT(", "POLYGON((", "((1 2),", "x IN (",
    "x BETWEEN 1 AND ", "'\\", "1", "1e", "is  not empty ", "==", "camera-", "INTERVAL(", "DATE('",
    "é", "point ", "a=1 OR ", "2026-11-01 ", "@a", "`", "sent(", "a IN (1) AND ", "\t", "a.",
]  # fmt: skip
HOSTILE = {
    **{piece: repeat(piece) for piece in _PIECES},
    "brackets": "(" * 40_000 + "a" + ")" * 40_000,
    "few brackets": "(" * 4_900 + "a" + ")" * 4_900,
    "negations": "NOT " * 9_000 + "a",
    "a sum": "a = " + "b+" * 4_900 + "b",
    "a list": "a IN (" + "1," * 4_900 + "1)",
    "a ring": "S_INTERSECTS(a, POLYGON((" + "1 1," * 3_000 + "1 1)))",
    "an array in arrays": "A_EQUALS(a, " + "(" * 4_900 + "1" + ")" * 4_900 + ")",
    "a text of escapes": "a = '" + "\\n" * 49_000 + "'",
    "an endless text": "a = '" + "\\'" * 49_000,
    "a long name in brackets": "a" * 99_000 + "[]",
    "a long wait": "a IS" + " " * 99_000 + "x",
    "a word before blanks": "point" + " " * 99_000 + "x",
}


def test_hostile_text_is_answered_in_time() -> None:
    parse_text("a")  # the parser is made
    for name, text in HOSTILE.items():
        # Processor time, and four times the bar: other work on the machine must not fail a test,
        # and what is not linear takes a hundred times as long.
        began = time.process_time()
        try:
            tree = parse_text(text)
            spent = time.process_time() - began
        except (InvalidFilter, NotKept) as refused:
            spent = time.process_time() - began
            [fault] = refused.faults
            longest = max(len(refused.detail), len(fault.message), sum(map(len, fault.known)))
            assert longest < 1_000, name
        else:
            assert parse_text(to_text(tree)) == tree, name
        assert spent < 4 * PER_KB * (1 + len(text.encode()) / 1000), name


def test_rejects_filters_over_a_cap(subtests: pytest.Subtests) -> None:
    cases: list[tuple[str, str]] = [
        ("a" * (MOST_BYTES + 1), "a filter has at most 100,000 bytes"),
        ("é" * (MOST_BYTES // 2 + 1), "a filter has at most 100,000 bytes"),
        ("(" * (MOST_TOKENS + 1), "a filter has at most 10,000 words and signs"),
        ("NOT " * MOST_DEPTH + "a", "nested at most 64 levels deep"),
        (" AND ".join(["a"] * MOST_NODES), "at most 2,000 operations, names and values"),
        ("a IN (" + "1," * MOST_ITEMS + "1)", "an array has at most 1,000 items"),
        ("a = 'x\0'", "neither NUL"),
        ("a = '\ud800'", "half a surrogate pair"),
        (
            "S_INTERSECTS(a, POLYGON((" + "1 1," * MOST_POSITIONS + "1 1)))",
            "a geometry has at most 1,000 positions",
        ),
    ]
    for text, message in cases:
        with subtests.test(message), pytest.raises(InvalidFilter, match=message):
            parse_text(text)


def test_reads_filters_just_within_the_caps() -> None:
    assert parse_json(nest_operations(MOST_DEPTH - 1))
    for text in (
        "NOT " * (MOST_DEPTH - 1) + "a",
        " AND ".join(["a"] * (MOST_NODES - 1)),
        "a IN (" + "1," * (MOST_ITEMS - 1) + "1)",
        "S_INTERSECTS(a, POLYGON((" + "1 1," * (MOST_POSITIONS - 1) + "1 1)))",
    ):
        tree = parse_text(text)
        assert parse_text(to_text(tree)) == tree
        assert parse_json(to_json(tree)) == tree


def nest(levels: int, value: object, wrap: Callable[[object], object]) -> object:
    for _ in range(levels):
        value = wrap(value)
    return value


def nest_operations(levels: int) -> object:
    return nest(levels, True, lambda value: {"op": "not", "args": [value]})


def nest_lists(levels: int) -> object:
    return nest(levels, 1, lambda value: [value])


def test_rejects_hostile_json(subtests: pytest.Subtests) -> None:
    cases: list[tuple[object, str]] = [
        (nest_operations(100_000), "nested at most 64 levels deep"),
        (nest_operations(MOST_DEPTH), "nested at most 64 levels deep"),
        (nest_lists(100_000), "nested at most 64 levels deep"),
        ({"bbox": nest_lists(100_000)}, "coordinates are lists of numbers"),
        (
            {"type": "Polygon", "coordinates": nest_lists(100_000)},
            "coordinates are lists of numbers",
        ),
        ({"op": "and", "args": [True] * MOST_NODES}, "at most 2,000 operations"),
        ({"op": "in", "args": [1, [1] * (MOST_ITEMS + 1)]}, "an array has at most 1,000 items"),
        ({"op": "=", "args": ["x" * 60_000, "x" * 60_000]}, "at most 100,000 bytes"),
        ({"op": "x" * 200_000, "args": []}, "at most 100,000 bytes"),
        ({"x" * 200_000: 1}, "an object here has one of"),
        ({"bbox": [0] * 200_000}, "at most 100,000 bytes"),
    ]
    for value, message in cases:
        with subtests.test(message):
            with pytest.raises(InvalidFilter, match=message) as refused:
                parse_json(value)
            assert len(refused.value.detail) < 2_000


def test_a_tree_too_deep_to_be_written_is_refused() -> None:
    tree: Node = Named("a")
    for _ in range(sys.getrecursionlimit() * 2):
        tree = Operation("not", (tree,))
    for write in (to_text, to_json):
        with pytest.raises(InvalidFilter, match="levels deep"):
            write(tree)
