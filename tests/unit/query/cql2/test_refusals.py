"""Answers to a filter that cannot be read: the position, and what was probably meant."""

import pytest

from inference_store.inference.errors import InvalidFilter, NotKept
from inference_store.query.cql2 import meant_by, parse_json, parse_text, pointed, where
from inference_store.query.cql2.tree import Named, Node, Operation, SourceRange


def find_refusal(text: str) -> InvalidFilter:
    with pytest.raises(InvalidFilter) as caught:
        parse_text(text)
    return caught.value


def test_a_slip_is_answered_with_what_was_meant() -> None:
    for text, meant in [
        ("camera == 3", "="),
        ("camera != 3", "<>"),
        ("a = 1 && b = 2", "AND"),
        ("a = 1 || b = 2", "OR"),
        ("a = 1 AND !b", "NOT"),
        ("a ILIKE 'x%'", "CASEI(name) LIKE CASEI('pattern%')"),
        ("a = NULL", "IS NULL"),
        ("a <> NULL", "IS NOT NULL"),
        ("a > 2026-11-01T10:00:00Z", "TIMESTAMP('2026-11-01T10:00:00Z')"),
        ("a > 2026-11-01 10:00", "TIMESTAMP('2026-11-01T10:00:00Z')"),
        ("a CONTAINS 'x'", "LIKE '%part%'"),
        ("`a b` = 1", '"a'),
        ("`a` = 1", '"a"'),
        ("metadata['x'] = 1", '"metadata.x"'),
        ("metadata[x] = 1", '"metadata.x"'),
        ("metadata.\"sp ace\" = 'x'", '"metadata.sp ace"'),
        ("a = *x*", "%"),
        ("*", "%"),
        ("tags[] = 'x'", '"tags[]"'),
        ("a.b[0].c = 'x'", '"a.b[0].c"'),
        ("user@host = 'x'", '"user@host"'),
        ("camera-id[] = 'x'", '"camera-id[]"'),
        ("2nd_floor = 1", '"2nd_floor"'),
        ("a = 'O'Brien'", "''"),
        ("a = 'x", "''"),
        ('"a = 1', '""'),
        ("a > DATE('2026-11-01T10:00:00Z')", "TIMESTAMP('2026-11-01T10:00:00Z')"),
        ("a > TIMESTAMP('2026-11-01')", "DATE('2026-11-01')"),
        ("a > TIMESTAMP('2026-11-01 10:00:00')", "TIMESTAMP('2026-11-01T10:00:00Z')"),
        ("s_intersect(a, POINT(1 2))", "S_INTERSECTS"),
        ("predictions(label = 'x')", "prediction"),
        ("a = ('x', 'y')", "A_EQUALS"),
    ]:
        suggestions = find_refusal(text).faults[0].known
        assert suggestions, text
        assert suggestions[0].startswith(meant), text


def test_explains_unreadable_filters() -> None:
    for text, message in [
        ("", "the filter is empty"),
        (" \n", "the filter is empty"),
        ("a =", "the filter ends too early: expected a name, a number"),
        ("(a = 1", "the filter ends too early: expected"),
        ("a = 1)", "')' is unexpected here: expected"),
        ("a = 1 b", "'b' is unexpected here: expected"),
        ("and = 1", "'and' is unexpected here: expected a name"),
        ("a BETWEEN 1 OR 2", "'OR' is unexpected here: expected"),
        ("a = #", "'#' means nothing here"),
        ("5", "a filter is a condition, and this is a number"),
        ("'x'", "a filter is a condition, and this is a text"),
        ("a + 1", "a filter is a condition, and this is a number"),
        ("a AND 1", "AND takes a condition here, and this is a number"),
        ("a + 'x' = 1", "+ takes a number here, and this is a text"),
        ("-'x' = 1", "* takes a number here, and this is a text"),
        ("+a = 1", "a + stands before a number"),
        ("a LIKE b", "LIKE takes a pattern"),
        ("a LIKE 5", "LIKE takes a pattern"),
        ("5 LIKE 'x'", "LIKE takes a text here, and this is a number"),
        ("a BETWEEN TRUE AND FALSE", "BETWEEN takes a number, text or time here"),
        ("POINT(1 2) = a", "= takes one value here, and this is a geometry"),
        ("a IN (POINT(1 2))", "a list holds"),
        ("S_WITHIN(a, 'x')", "S_WITHIN takes a geometry here, and this is a text"),
        ("S_WITHIN(a)", "S_WITHIN takes two arguments, not 1"),
        ("T_AFTER(a, 5)", "T_AFTER takes a time"),
        ("T_AFTER(a, INTERVAL(count_predictions(), '..'))", "a bound of an interval is no number"),
        ("A_EQUALS(a, 5)", "A_EQUALS takes an array"),
        ("CASEI(5) = 'x'", "CASEI takes a text here, and this is a number"),
        ("sent('a')", "sent takes a name here, and this is a text"),
        ("isNull(a)", "isNull is not a function: write it as IS NULL"),
        ("foo(a)", "there is no function foo; known are prediction, "),
        ("count_prediction()", "there is no function count_prediction; the nearest are count_pred"),
        ("INTERVAL(DATE('2026-11-01'), '..') = a", "'DATE' is unexpected here"),
        ("2 ^ 3 ^ 4 = a", "'^' is unexpected here"),
        ("a = b = c", "'=' is unexpected here"),
    ]:
        assert message in find_refusal(text).faults[0].message, text
        assert message in find_refusal(text).detail, text


def test_a_caret_marks_the_position() -> None:
    error = find_refusal("a = 1\n  AND\tcamera-id == 'x'")
    assert error.faults[0].path == "filter"
    assert error.faults[0].message == (
        "line 2, column 18: equality is written =\n    AND camera-id == 'x'\n                   ^"
    )
    assert error.detail == ("The filter cannot be read, line 2, column 18: equality is written =.")


def test_line_column_and_length_are_numbers_too() -> None:
    cases: list[tuple[str, tuple[int | None, int | None, int | None]]] = [
        ("a = 1\n  AND\tcamera-id == 'x'", (2, 18, 1)),
        ("a = 1 AND foo(a)", (1, 11, 6)),
        ("a =", (1, 4, 1)),
        ("é = 1 AND 'x", (1, 11, 2)),
        ("", (None, None, None)),
    ]
    for text, position in cases:
        [fault] = find_refusal(text).faults
        assert (fault.line, fault.column, fault.length) == position, text


def test_a_long_line_is_cut_around_the_place() -> None:
    error = find_refusal("a = 1 AND " * 50 + "b == 2" + " AND a = 1" * 50)
    message, line, carets = error.faults[0].message.split("\n")
    assert message.startswith("line 1, column 504:")
    assert len(line) < 80
    assert line[carets.index("^") - 1 :].startswith("== 2 AND")


def test_a_place_in_json_is_its_path() -> None:
    tree = parse_json({"op": "not", "args": [{"property": "a"}]})
    assert isinstance(tree, Operation)
    assert where(tree.args[0].at, None) == "filter.args[0]"
    assert pointed(SourceRange(start=2, end=5), "a bcd e") == "  a bcd e\n    ^^^"


def find_left_side(text: str) -> Node:
    tree = parse_text(text)
    assert isinstance(tree, Operation)
    return tree.args[0]


def test_suggests_what_a_filter_probably_meant() -> None:
    cases: list[tuple[str, str | None]] = [
        ("camera-id = 3", '"camera-id"'),
        ("camera-id-2 = 3", '"camera-id-2"'),
        ("camera-007 = 3", '"camera-007"'),
        ('"Toronto" = city', "'Toronto'"),
        ('"O\'Brien" = name', "'O''Brien'"),
        ("camera - id = 3", None),
        ("city = 3", None),
        ("a - 1.5 = 3", None),
        ("(a-b)-c = 3", None),
        ("5-3 = 3", None),
    ]
    for text, meant in cases:
        assert meant_by(find_left_side(text)) == meant, text


def test_nothing_is_guessed_of_json() -> None:
    tree = parse_json({"op": "=", "args": [{"op": "-", "args": [{"property": "a"}, 1]}, 3]})
    assert isinstance(tree, Operation)
    assert meant_by(tree.args[0]) is None
    assert meant_by(Named("a")) is None


def test_answers_501_with_the_class_that_is_not_supported() -> None:
    with pytest.raises(NotKept) as caught:
        parse_text("a AND S_CROSSES(location, BBOX(1, 2, 3, 4))")
    assert caught.value.status == 501
    assert caught.value.detail == (
        "S_CROSSES is not kept; it belongs to the conformance class Spatial Functions "
        "(http://www.opengis.net/spec/cql2/1.0/conf/spatial-functions), which is not kept here."
    )
    assert "line 1, column 7" in caught.value.faults[0].message
