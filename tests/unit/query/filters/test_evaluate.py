"""Filters evaluated for one inference: NULL, several values, and what only a typed filter says."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import product
from typing import Any, get_args

import pytest

from inference_store.query.filters.evaluate import _MEANINGS, _VALUES, evaluate, exact, milliseconds
from inference_store.query.filters.typed import (
    And,
    Column,
    Compared,
    Constant,
    Fixed,
    Holds,
    Metadata,
    Missing,
    Not,
    Or,
    Predicate,
    Value,
)
from tests.unit.query.filters.evaluation import evaluate_filter, make_facts

_NOW = datetime(2026, 11, 1, tzinfo=UTC)
_METADATA: dict[str, Any] = {
    "frame_number": ("int", "9000"),
    "data_source": ("string", "hallway"),
    "seen": ("timestamp", "2026-11-01T00:00:00Z"),
    "tags": ["a", "b", 3],
    "sizes": [],
    "longitude": 2.5,
    "latitude": 48.5,
}
_PROPERTIES: dict[str, Any] = {
    "ok": True,
    "width": 640,
    "top_score": 0.1,
    "received_at": _NOW,
    "inference_ids": ("1", "alias"),
    "top_label": None,
}


def test_filters_of_an_inference() -> None:
    for text, expected in [
        ("frame_number > 8999.5", True),
        ("data_source <> 'hallway'", False),
        ("seen < received_at", False),
        ("seen <= received_at", True),
        # Some combination of several values.
        ('"tags[]" < "tags[]"', True),
        ('"tags[]" = 3', True),
        # A double is the decimal that it spells.
        ("top_score = 0.1", True),
        ("inference.width BETWEEN 640 AND 640.0", True),
        ("inference.width BETWEEN 639 AND 640", True),
        ("inference.width BETWEEN 640.1 AND 700", False),
        ("inference.width BETWEEN 641 AND 1", False),
        ("inference.width BETWEEN speed AND 700", None),
        ("data_source LIKE 'H%'", False),
        ("speed LIKE '%'", None),
        ('"camera-id" IS NULL', True),
        ("top_label IS NULL", True),
        ("inference.width IS NULL", False),
        ("sent(camera_position)", False),
        ("sent(speed)", False),
        ("frame_number + inference.width = 9640", True),
        ("distance(location, POINT(2.5 48.5)) < 0.001", True),
        ("A_CONTAINS(tags, ())", True),
        ('A_OVERLAPS("sizes[]", ())', None),
        ("A_CONTAINS(inference_ids, ('alias'))", True),
    ]:
        assert evaluate_filter(text, _METADATA, **_PROPERTIES) is expected, text


def test_a_key_has_the_values_of_the_kind_that_is_asked_for() -> None:
    facts = make_facts({"frame_number": ("int", "9000"), "speed": ("int", "many")})
    as_text = Metadata("frame_number", 1, "string", False)
    assert evaluate(Compared("=", as_text, Constant("string", "9000")), facts) is None
    assert evaluate(Holds(Metadata("frame_number", 1, "bool", False)), facts) is None
    assert evaluate(Missing(as_text), facts) is False
    assert evaluate(Missing(Metadata("speed", 1, "number", False)), facts) is False


def test_predictions_that_are_unknown_and_none() -> None:
    for text, unknown, none in [
        ("prediction()", None, False),
        ("prediction(label = 'cat')", None, False),
        ("count_predictions() >= 0", None, True),
        ("count_predictions() = 0", None, True),
        ("count_predictions() IS NULL", True, False),
    ]:
        assert evaluate_filter(text, predictions=None) is unknown, text
        assert evaluate_filter(text, predictions=()) is none, text


def test_off_the_map_is_nowhere() -> None:
    inside = "S_INTERSECTS(location, BBOX(-180, -90, 180, 90))"
    for longitude, expected in [("180", True), ("-180", True), ("180.5", None), ("east", None)]:
        place = {"longitude": ("float", longitude), "latitude": ("float", "1")}
        assert evaluate_filter(inside, place) is expected, longitude
        assert evaluate_filter(f"NOT {inside}", place) is (expected and False), longitude


def test_three_valued_logic() -> None:
    for left, right in product((True, False, None), repeat=2):
        parts, both = (Fixed(left), Fixed(right)), {left, right}
        conjunction = False if False in both else None if None in both else True
        disjunction = True if True in both else None if None in both else False
        opposite = None if conjunction is None else not conjunction
        assert evaluate(And(parts), make_facts()) is conjunction, parts
        assert evaluate(Or(parts), make_facts()) is disjunction, parts
        assert evaluate(Not(And(parts)), make_facts()) is opposite, parts


def test_a_column_is_only_of_a_prediction() -> None:
    outside = Compared("=", Column("score", "number"), Constant("number", Decimal(0)))
    with pytest.raises(AssertionError, match="score"):
        evaluate(outside, make_facts())


def test_doubles() -> None:
    for double, spelt in [(0.1, "0.1"), (5.0, "5"), (1e-05, "0.00001"), (1e16, "1e16")]:
        assert exact(double) == Decimal(spelt)
        assert exact(double).as_tuple().exponent == Decimal(spelt).as_tuple().exponent


def test_milliseconds_are_exact() -> None:
    assert milliseconds(_NOW, _NOW + timedelta(microseconds=1)) == (Decimal("0.001"),)
    assert milliseconds(_NOW, _NOW - timedelta(seconds=1)) == (Decimal(-1000),)
    assert str(milliseconds(_NOW, _NOW)[0]) == "0.000000"
    assert milliseconds(_NOW, None) == ()


def test_every_kind_has_a_meaning() -> None:
    assert set(get_args(Predicate)) == set(_MEANINGS)
    assert set(get_args(Value)) == set(_VALUES)
