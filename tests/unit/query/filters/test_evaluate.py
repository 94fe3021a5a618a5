"""Filters evaluated for one inference: NULL, several values, and what only a typed filter says."""

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, get_args

import pytest

from inference_store.inference.errors import InvalidFilter
from inference_store.query.filters.typed import (
    Compared,
    Constant,
    Metadata,
    Missing,
    Predicate,
    Value,
)
from tests.unit.query.filters.evaluation import check_filter, evaluate_filter, make_facts
from tests.unit.query.filters.oracle import _MEANINGS, _VALUES, evaluate, exact

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
    assert evaluate(Compared("=", (as_text, Constant("string", "9000"))), facts) is None
    assert (
        evaluate(Compared("outside", (Metadata("frame_number", 1, "bool", False),)), facts) is None
    )
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


def test_doubles() -> None:
    for double, spelt in [(0.1, "0.1"), (5.0, "5"), (1e-05, "0.00001"), (1e16, "1e16")]:
        assert exact(double) == Decimal(spelt)
        assert exact(double).as_tuple().exponent == Decimal(spelt).as_tuple().exponent


def test_every_kind_has_a_meaning() -> None:
    assert set(get_args(Predicate)) == set(_MEANINGS)
    assert set(get_args(Value)) == set(_VALUES)


def test_filters_that_calculate() -> None:
    cases: list[tuple[str, dict[str, object], bool | None]] = [
        ("frame_number ^ 2 = 15241578753238836750190521", {"frame_number": 3904046971190}, False),
        ("frame_number ^ 2 = 12345678987654321", {"frame_number": 111111111}, True),
        ("frame_number ^ 3 = 1371742041152263374409999", {"frame_number": 111111110}, False),
        # a power that is not multiplied out is rounded: of a whole exponent to 320 decimals
        ("10 ^ -30 = 0", {}, False),
        ("frame_number ^ -30 = 1e-30", {"frame_number": 10}, True),
        (f"frame_number ^ 11 = {1001**11}", {"frame_number": 1001}, True),
        (f"frame_number ^ 12 = {1001**12}", {"frame_number": 1001}, True),
        (f"inference.width ^ 16 = {641**16}", {}, True),
        (f"inference.width ^ 17 = {641**17}", {}, True),
        ("frame_number ^ 17 = 131072", {"frame_number": 2}, True),
        ("frame_number ^ 0.5 = 3", {"frame_number": 9}, True),
        ("frame_number ^ speed = 8", {"frame_number": 2, "speed": 3}, True),
        ("frame_number ^ speed = 8", {"frame_number": 2}, None),
        ("speed ^ frame_number = 8", {"frame_number": 2}, None),
        ("frame_number ^ 0.5 > 0", {"frame_number": -1}, None),
        ("frame_number + 0 ^ -1 = 1", {"frame_number": 1}, None),
        ("2 ^ -1 = 0.5", {}, True),
        # of the standard's own tests of the class
        ("frame_number >= 1038290 - 2 * 2 ^ 0", {"frame_number": 1038288}, True),
        ("frame_number > 1038290 - 21 div 10", {"frame_number": 1038288}, False),
        ("1038280 + 8 = frame_number", {"frame_number": 1038288}, True),
        ("frame_number NOT BETWEEN 4000000/4 AND (3*(9+1))", {"frame_number": 1}, True),
        ("frame_number IN (3*1000+8, 30*100+9)", {"frame_number": 3009}, True),
    ]
    for text, metadata, expected in cases:
        assert evaluate_filter(text, metadata, width=641) is expected, text


def test_a_product_has_at_most_16_000_digits_after_the_point() -> None:
    assert check_filter(" * ".join(["frame_number"] * 11) + " = 1")
    with pytest.raises(InvalidFilter, match="more digits than can be calculated exactly"):
        check_filter(" * ".join(["frame_number"] * 12) + " = 1")


def test_numbers_are_compared_by_value_and_texts_by_their_digits() -> None:
    long = "9" * 1000
    cases: list[tuple[str, object, bool | None]] = [
        ('"tags[]" = 1000', ["1e3"], True),
        ("\"tags[]\" = '1000'", ["1e3"], False),
        ("\"tags[]\" = '1e3'", ["1e3"], True),
        ('"tags[]" = 1000', ["1000.00"], True),
        ("\"tags[]\" = '1000'", ["1000.00"], False),
        ("frame_number = 1.500", ("float", "1.5"), True),
        ("frame_number = 1.5", ("float", "1.500"), True),
        (f"frame_number = {long}", ("int", long), True),
        (f"frame_number = {long}", ("int", f"{long}9"), None),
        ("frame_number = 1e400", ("float", "1e400"), True),
        ("frame_number = 1e400", ("float", "1" + "0" * 400), True),
        ("frame_number = 1e400", ("float", "1e401"), None),
        ("frame_number = 1e-400", ("float", "1e-400"), True),
        ("frame_number = 1e-400", ("float", "1e-401"), None),
    ]
    for text, value, expected in cases:
        key = "tags" if "tags" in text else "frame_number"
        assert evaluate_filter(text, {key: value}) is expected, (text[:40], str(value)[:40])
