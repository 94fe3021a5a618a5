"""JSON in and out: exact numbers, members, paths of what is wrong."""

import json
from decimal import Decimal
from typing import Any

import pytest

from inference_store.inference.errors import InvalidFilter, NotKept
from inference_store.inference.json_text import Number, read_exactly, write_json
from inference_store.query.cql2 import parse, parse_json, parse_json_text, to_json
from inference_store.query.cql2.tree import Named, Operation, Scalar


def make_equality(value: object) -> dict[str, Any]:
    return {"op": "=", "args": [{"property": "a"}, value]}


def test_a_number_is_exact() -> None:
    cases: list[tuple[object, str]] = [
        (12345678901234567890, "12345678901234567890"),
        (Number("12345678901234567890.5"), "12345678901234567890.5"),
        (Decimal("0.1"), "0.1"),
        (0.1, "0.1"),
        (1e-7, "0.0000001"),
        (-0.0, "0"),
    ]
    for written, value in cases:
        tree = parse_json(make_equality(written))
        assert tree == Operation("=", (Named("a"), Scalar(Decimal(value)))), written
        assert parse_json_text(write_json(to_json(tree))) == tree, written


def test_prints_numbers_as_python_numbers_if_exact() -> None:
    assert to_json(parse_json(make_equality(1))) == make_equality(1)
    assert json.dumps(to_json(parse_json(make_equality(Number("0.10"))))) == json.dumps(
        make_equality(0.1)
    )
    long = to_json(parse_json_text('{"op":"=","args":[{"property":"a"},12345678901234567890]}'))
    assert isinstance(long["args"][1], Number)
    assert write_json(long).endswith("12345678901234567890]}")


def test_names_the_path_of_a_mistake() -> None:
    like = {"op": "like", "args": ["a", {"property": "b"}]}
    point = {"type": "Point", "coordinates": [[1]]}
    cases: list[tuple[object, str, str]] = [
        (None, "filter", "null is not a value here"),
        (5, "filter", "a filter is a condition, and this is a number"),
        ([], "filter", "a filter is a condition, and this is an empty list"),
        ({}, "filter", "an object here has one of op, property"),
        ({"op": "="}, "filter.args", "`args` of = is a list"),
        ({"op": 1, "args": []}, "filter.op", "`op` is a text"),
        ({"op": "==", "args": []}, "filter", "equality is written ="),
        ({"op": "t_befor", "args": []}, "filter", "the nearest are T_BEFORE"),
        ({"op": "~*", "args": []}, "filter", "no operation '~*'; known are and, or, not, =,"),
        ({"op": "=", "args": [1]}, "filter", "= takes two arguments, not 1"),
        ({"op": "and", "args": [True]}, "filter", "AND takes two or more arguments, not 1"),
        ({"op": "and", "args": [True, 1]}, "filter.args[1]", "AND takes a condition here"),
        ({"op": "not", "args": [True], "x": 1}, "filter", "nothing is known of 'x' here"),
        (make_equality(None), "filter.args[1]", "null is not a value here"),
        (make_equality(float("nan")), "filter.args[1]", "not a decimal number"),
        (make_equality({"date": "x"}), "filter.args[1]", "a date is written 2026-11-01"),
        (make_equality({"date": 1}), "filter.args[1].date", "`date` is a text"),
        (make_equality({"property": 1}), "filter.args[1].property", "`property` is a text"),
        (make_equality("\0"), "filter.args[1]", "neither NUL"),
        (make_equality("\ud800"), "filter.args[1]", "neither NUL"),
        ({"op": "in", "args": [1, []]}, "filter.args[1]", "this is an empty list"),
        ({"op": "in", "args": [1, 2]}, "filter.args[1]", "IN takes a list of one"),
        (like, "filter.args[1]", "LIKE takes a pattern"),
        ({"op": "t_after", "args": [{"interval": ["x"]}, 1]}, "filter.args[0]", "two bounds"),
        ({"op": "sent", "args": ["a"]}, "filter.args[0]", "sent takes a name here"),
        ({"op": "prediction", "args": [True, True]}, "filter", "no arguments or one, not 2"),
        (make_equality({"type": "Circle"}), "filter.args[1]", "there is no geometry 'Circle'"),
        (make_equality({"type": "Point"}), "filter.args[1]", "a Point has `coordinates`"),
        (make_equality(point), "filter.args[1]", "no coordinates"),
        (make_equality({"type": "Point", "coordinates": 1}), "filter.args[1]", "lists of numbers"),
        (make_equality({"bbox": [1, 2, True, 4]}), "filter.args[1]", "lists of numbers"),
        ({"op": "foo", "args": []}, "filter", "there is no function foo"),
        ({"op": "foo", "args": []}, "filter", "known are prediction, count_predictions, truth"),
    ]
    for value, path, message in cases:
        with pytest.raises(InvalidFilter) as refused:
            parse_json(value)
        [fault] = refused.value.faults
        assert (fault.path, message in fault.message) == (path, True), value
        assert path in refused.value.detail, value


def test_a_member_given_twice_is_refused() -> None:
    with pytest.raises(InvalidFilter, match="given twice: op"):
        parse_json(read_exactly('{"op": "=", "op": "<", "args": [1, 2]}'))


def test_names_the_path_of_an_unsupported_operation() -> None:
    line = {"type": "LineString", "coordinates": [[0, 0], [1, 1]]}
    with pytest.raises(NotKept, match="conf/basic-spatial-functions-plus") as refused:
        parse_json({"op": "s_intersects", "args": [{"property": "a"}, line]}, path="hold.filter")
    assert refused.value.faults[0].path == "hold.filter.args[1]"


def test_a_string_is_read_as_text_unless_declared_as_json() -> None:
    tree = parse("a = 1")
    assert parse(make_equality(1)) == tree
    assert parse(json.dumps(make_equality(1)), lang="cql2-json") == tree
    assert parse(make_equality(1), lang="cql2-json") == tree
    with pytest.raises(InvalidFilter, match="filter-lang=cql2-json"):
        parse(json.dumps(make_equality(1)))
    with pytest.raises(InvalidFilter, match="it is not JSON"):
        parse("a = 1", lang="cql2-json")
    with pytest.raises(InvalidFilter, match="cql2-json"):
        parse(make_equality(1), lang="cql2-text")
