"""The table of operators, without a database."""

from decimal import Decimal

import pytest

from inference_store.query.properties import OPERATORS, find_operator, like_expression
from tests.unit.query.operator_meanings import holds


def test_the_meaning() -> None:
    cases: list[tuple[str, list[object], object, bool]] = [
        ("eq", [1, 2], 2, True),
        ("eq", [], 2, False),
        ("neq", [1, 2], 2, True),
        ("neq", [2], 2, False),
        ("neq", [], 2, False),
        ("not_in", [1, 2], [2], False),
        ("not_in", [1], [2], True),
        ("not_in", [], [2], False),
        ("between", [Decimal("0.1")], [Decimal("0.1"), Decimal(1)], True),
        ("like", ["a%c"], "a\\%c", True),
        ("like", ["abc"], "a\\%c", False),
        ("like", ["a\nc"], "a_c", True),
        ("exists", [None], None, True),
        ("missing", [], None, True),
    ]
    for name, values, operand, expected in cases:
        assert holds(OPERATORS[name], values, operand) is expected, name


def test_names_in_any_case_of_letters() -> None:
    for entry in OPERATORS.values():
        for name in (entry.name, *entry.aliases):
            assert find_operator(name.lower()) is find_operator(name.upper()) is entry
    assert find_operator("gtt") is None


def test_patterns_of_several_pieces() -> None:
    for pattern, text, matches in [
        ("%ab%ab", "abab", True),
        ("%ab%ab", "xab", False),
        ("a%b%b", "abxb", True),
        ("a%b%b", "ab", False),
        ("%a_%c", "aabc", True),
        ("%a_%c", "ac", False),
        ("%%", "", True),
        ("a%%", "ba", False),
        ("%\\%%", "50% off", True),
        ("", "", True),
        ("%a%" * 20 + "b", "a" * 5_000, False),
    ]:
        assert (like_expression(pattern).fullmatch(text) is not None) is matches, pattern


def test_a_pattern_does_not_end_in_a_backslash() -> None:
    with pytest.raises(ValueError, match="backslash"):
        like_expression("a\\")
