"""The corners of the conformance classes: any exponent, any two arrays, any two geometries."""

from decimal import Decimal

import pytest

from inference_store.inference.errors import InvalidFilter, NotKept
from inference_store.query.filters.arithmetic import calculate
from inference_store.query.filters.typed import Compared, Fixed, Sets
from tests.unit.query.filters.evaluation import check_filter, evaluate_filter

_BERLIN = {"longitude": 13.4, "latitude": 52.5}


@pytest.mark.parametrize(
    ("base", "exponent", "expected"),
    [
        ("9", "0.5", "3"),
        ("2", "-1", "0.5"),
        ("-2", "3", "-8"),
        ("-2", "-3", "-0.125"),
        ("2", "20", "1048576"),
        ("0", "0", "1"),
        ("0", "2.5", "0"),
        ("10", "-3", "0.001"),
        ("1", "1e9", "1"),
        ("1e-400", "0", "1"),
        ("-9", "0.5", None),
        ("0", "-1", None),
        ("10", "299", "1E+299"),
        ("10", "300", None),
        ("10", "-300", None),
        ("1e301", "2", None),
        ("1e-301", "2", None),
        ("2", "1e10", None),
        ("2", "1e-301", None),
        ("1" + "0" * 299 + "1", "0.5", None),
    ],
)
def test_a_power_of_any_exponent(base: str, exponent: str, expected: str | None) -> None:
    power = calculate("power", Decimal(base), Decimal(exponent))
    assert power == (None if expected is None else Decimal(expected))


@pytest.mark.parametrize(
    ("text", "metadata", "expected"),
    [
        ("frame_number ^ 2 = 15241578753238836750190521", {"frame_number": 3904046971190}, False),
        ("frame_number ^ 2 = 12345678987654321", {"frame_number": 111111111}, True),
        ("frame_number ^ 3 = 1371742041152263374409999", {"frame_number": 111111110}, False),
        ("frame_number ^ 0.5 = 3", {"frame_number": 9}, True),
        ("frame_number ^ speed = 8", {"frame_number": 2, "speed": 3}, True),
        ("frame_number ^ speed = 8", {"frame_number": 2}, None),
        ("speed ^ frame_number = 8", {"frame_number": 2}, None),
        ("frame_number ^ 17 = 131072", {"frame_number": 2}, True),
        ("frame_number ^ 16 = 65536", {"frame_number": 2}, True),
        ("frame_number ^ 0.5 > 0", {"frame_number": -1}, None),
        ("frame_number + 0 ^ -1 = 1", {"frame_number": 1}, None),
        ("2 ^ -1 = 0.5", {}, True),
        # of the standard's own tests of the class
        ("frame_number >= 1038290 - 2 * 2 ^ 0", {"frame_number": 1038288}, True),
        ("frame_number > 1038290 - 21 div 10", {"frame_number": 1038288}, False),
        ("frame_number < 1038280 + 2 ^ 3", {"frame_number": 1038287}, True),
        ("1038280 + 8 = frame_number", {"frame_number": 1038288}, True),
        ("frame_number NOT BETWEEN 4000000/4 AND (3*(9+1))", {"frame_number": 1}, True),
        ("frame_number IN (3*1000+8, 30*100+9)", {"frame_number": 3009}, True),
    ],
)
def test_arithmetic(text: str, metadata: dict[str, object], expected: bool | None) -> None:
    assert evaluate_filter(text, metadata) is expected


@pytest.mark.parametrize(
    ("text", "metadata", "expected"),
    [
        ('A_EQUALS(tags, "sizes[]")', {"tags": [1, 2], "sizes": [2, 1, 1]}, True),
        ('A_EQUALS(tags, "sizes[]")', {"tags": [1, "a"], "sizes": [1]}, False),
        ('A_EQUALS(tags, "sizes[]")', {"tags": ["1"], "sizes": [1]}, False),
        ('A_CONTAINS(tags, "sizes[]")', {"tags": ["1"], "sizes": [1]}, True),
        ('A_CONTAINS(tags, "sizes[]")', {"tags": [1, "a"], "sizes": [1]}, True),
        ('A_CONTAINS("sizes[]", tags)', {"tags": [1, "a"], "sizes": [1]}, False),
        ('A_CONTAINEDBY("sizes[]", tags)', {"tags": [1, "a"], "sizes": [1]}, True),
        ('A_OVERLAPS(tags, "sizes[]")', {"tags": [3, "a"], "sizes": [1]}, False),
        ('A_OVERLAPS(tags, "sizes[]")', {"tags": [3, 1], "sizes": [1, 2]}, True),
        ('A_EQUALS(tags, "sizes[]")', {"tags": [1]}, None),
        ('NOT A_EQUALS(tags, "sizes[]")', {"tags": [1], "sizes": []}, None),
        ("A_EQUALS(tags, tags)", {"tags": ["a", 1]}, True),
        ("A_CONTAINEDBY(tags, inference_ids)", {"tags": ["7"]}, True),
        ("A_CONTAINEDBY(tags, inference_ids)", {"tags": ["7", 8]}, False),
        ("A_CONTAINS(tags, (frame_number, 'a'))", {"frame_number": 1, "tags": [1, "a"]}, True),
        ("A_CONTAINS(tags, (frame_number, 'a'))", {"frame_number": 2, "tags": [1, "a"]}, False),
        ("A_CONTAINS(tags, (frame_number, 'a'))", {"tags": [1, "a"]}, None),
        ("A_CONTAINS((frame_number + 1, 'a'), tags)", {"frame_number": 1, "tags": [2]}, True),
        ("A_OVERLAPS(tags, (CASEI('A'), data_source))", {"data_source": "b", "tags": ["a"]}, True),
        ("A_EQUALS((frame_number), (1, 2 - 1))", {"frame_number": 1}, True),
        ("A_EQUALS((ok, frame_number > 0), (TRUE))", {"frame_number": 1}, True),
        ("A_EQUALS((TRUE), (1))", {}, False),
        # other values are equal only to values written the same way
        ("A_EQUALS((1, ('a', 'b')), (('b', 'a'), 1))", {}, True),
        ("A_CONTAINS((1, POINT(1 2)), (POINT(1 2)))", {}, True),
        ("A_CONTAINS((1, POINT(1 2)), (POINT(1 3)))", {}, False),
        ("A_OVERLAPS((1, POINT(1 2)), (2, POINT(1 2)))", {}, True),
        ("A_OVERLAPS((1, INTERVAL('2026-01-01', '..')), (2, POINT(1 2)))", {}, False),
        ("A_CONTAINS(tags, ('a', ('b', 'c')))", {"tags": ["a"]}, False),
        ("A_CONTAINS(tags, ('a', ('b', 'c')))", {"tags": []}, None),
        ("A_CONTAINEDBY(tags, ('a', POINT(1 2)))", {"tags": ["a"]}, True),
        ("A_OVERLAPS(tags, ('a', POINT(1 2)))", {"tags": ["a"]}, True),
        ("A_EQUALS(tags, ('a', POINT(1 2)))", {"tags": ["a"]}, False),
    ],
)
def test_arrays(text: str, metadata: dict[str, object], expected: bool | None) -> None:
    assert evaluate_filter(text, metadata, inference_ids=("7", "x"), ok=True) is expected


def test_keeps_the_form_that_an_index_leads() -> None:
    assert not isinstance(check_filter("A_CONTAINS(tags, ('a'))").predicate, Sets)
    assert isinstance(check_filter("A_CONTAINS(tags, tags)").predicate, Sets)
    assert check_filter("A_EQUALS(('a', 1), (1, 'a'))").predicate == Fixed(True)


_TRIANGLE = "POLYGON((0 0, 4 0, 0 4, 0 0), (1 1, 1 2, 2 1, 1 1))"


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("POINT(1 1)", "BBOX(0, 0, 2, 2)", True),
        ("POINT(2 2)", "BBOX(0, 0, 2, 2)", True),
        ("POINT(2 2.0001)", "BBOX(0, 0, 2, 2)", False),
        ("POINT(1 1)", "POINT(1.0 1)", True),
        ("POINT(1 1)", "POINT(1 2)", False),
        ("BBOX(0, 0, 1, 1)", "BBOX(1, 1, 2, 2)", True),
        ("BBOX(0, 0, 1, 1)", "BBOX(1.1, 1, 2, 2)", False),
        ("BBOX(0, 0, 9, 9)", "BBOX(1, 1, 2, 2)", True),
        ("BBOX(0, 3, 9, 4)", "BBOX(3, 0, 4, 9)", True),
        ("BBOX(150, -90, -150, 90)", "BBOX(-170, 0, -160, 1)", True),
        ("BBOX(150, -90, -150, 90)", "BBOX(-140, 0, 140, 1)", False),
        ("BBOX(1, 1, 1, 1)", "BBOX(0, 0, 2, 2)", True),
        ("BBOX(1, 1, 1, 1)", "POINT(1 1)", True),
        ("BBOX(1, 0, 1, 4)", "BBOX(1, 4, 1, 9)", True),
        ("BBOX(1, 0, 1, 4)", "BBOX(1, 5, 1, 9)", False),
        (_TRIANGLE, "POINT(1.2 1.2)", False),
        (_TRIANGLE, "POINT(1 1)", True),
        (_TRIANGLE, "BBOX(1.1, 1.1, 1.2, 1.2)", False),
        (_TRIANGLE, "BBOX(0.1, 0.1, 0.2, 0.2)", True),
        (_TRIANGLE, "BBOX(-1, -1, 9, 9)", True),
        (_TRIANGLE, "BBOX(2.1, 2.1, 9, 9)", False),
        ("MULTIPOINT(9 9, 1 1)", "BBOX(0, 0, 2, 2)", True),
        ("MULTIPOLYGON(((8 8, 9 8, 9 9, 8 8)), ((0 0, 1 0, 1 1, 0 0)))", "POINT(1 0.5)", True),
        ("GEOMETRYCOLLECTION(POINT(9 9), POLYGON((0 0, 1 0, 1 1, 0 0)))", "POINT(1 0.5)", True),
    ],
)
def test_two_geometries(first: str, second: str, expected: bool) -> None:
    for a, b in ((first, second), (second, first)):
        assert evaluate_filter(f"S_INTERSECTS({a}, {b})") is expected
        assert evaluate_filter(f"S_DISJOINT({a}, {b})") is not expected


def test_a_point_within_a_geometry() -> None:
    assert evaluate_filter("S_WITHIN(POINT(1 1), BBOX(0, 0, 2, 2))") is True
    assert evaluate_filter("S_WITHIN(POINT(2 1), BBOX(0, 0, 2, 2))") is False
    assert evaluate_filter("S_WITHIN(MULTIPOINT(2 1, 1 1), BBOX(0, 0, 2, 2))") is True
    assert evaluate_filter("S_WITHIN(MULTIPOINT(2 1, 3 1), BBOX(0, 0, 2, 2))") is False
    with pytest.raises(NotKept, match="conf/spatial-functions"):
        check_filter("S_WITHIN(BBOX(0, 0, 2, 2), BBOX(0, 0, 2, 2))")


def test_the_location_and_itself() -> None:
    for op, expected in (("S_INTERSECTS", True), ("S_WITHIN", True), ("S_DISJOINT", False)):
        assert evaluate_filter(f"{op}(location, location)", _BERLIN) is expected
        assert evaluate_filter(f"{op}(location, location)") is None


def test_geometries_of_too_many_corners() -> None:
    ring = ", ".join(f"{n / 100} {n % 2}" for n in range(150))
    area = f"POLYGON(({ring}, 0 0))"
    points = "MULTIPOINT(" + ", ".join(f"{n / 100} 0.5" for n in range(150)) + ")"
    for text in (f"S_INTERSECTS({area}, {area})", f"S_WITHIN({points}, {area})"):
        with pytest.raises(InvalidFilter, match="too many corners"):
            check_filter(text)


def test_many_pairs_of_geometries_have_one_measure() -> None:
    ring = ", ".join(f"{n / 100} {n % 2}" for n in range(30))
    area = f"POLYGON(({ring}, 0 0))"
    assert evaluate_filter(" AND ".join([f"S_INTERSECTS({area}, {area})"] * 11)) is True
    with pytest.raises(InvalidFilter, match="too many corners"):
        check_filter(" AND ".join([f"S_INTERSECTS({area}, {area})"] * 12))


def test_a_collection_has_no_more_positions_than_a_geometry() -> None:
    points = "MULTIPOINT(" + ", ".join(f"{n / 10} 1" for n in range(600)) + ")"
    check_filter(f"S_INTERSECTS(location, GEOMETRYCOLLECTION({points}))")
    with pytest.raises(InvalidFilter, match="1,000 positions"):
        check_filter(f"S_INTERSECTS(location, GEOMETRYCOLLECTION({points}, {points}))")


def test_counts_repeated_predicates() -> None:
    many = " OR ".join(f"frame_number = {n}" for n in range(400))
    conditions = ", ".join(f"(speed = {n})" for n in range(16))
    check_filter(f"({many}) IN (day, FALSE)")
    with pytest.raises(InvalidFilter, match="more than 5,000 comparisons"):
        check_filter(f"(({many}) IN ({conditions})) IN ({conditions})")


def test_1_and_true_are_two_elements() -> None:
    assert evaluate_filter("A_EQUALS(((1), (2)), ((TRUE), (2)))") is False
    assert evaluate_filter("A_EQUALS(((1), (2)), ((2), (1)))") is True


@pytest.mark.parametrize(
    ("text", "metadata", "expected"),
    [
        ("(frame_number = 1) = (speed = 2)", {"frame_number": 1, "speed": 2}, True),
        ("(frame_number = 1) = (speed = 2)", {"frame_number": 3, "speed": 4}, True),
        ("(frame_number = 1) <> (speed = 2)", {"frame_number": 1, "speed": 4}, True),
        ("(frame_number = 1) = (speed = 2)", {"frame_number": 1}, None),
        ("day = (frame_number > 1)", {"frame_number": 1, "day": False}, True),
        ("(frame_number > 1) IN (day, FALSE)", {"frame_number": 1, "day": True}, True),
        ("ok = prediction(score > 0.5)", {}, True),
        ("prediction((score > 0.5) = (label = 'car'))", {}, True),
        ("(1 = 1) = (2 = 2)", {}, True),
    ],
)
def test_conditions_are_compared(text: str, metadata: dict[str, object], expected: bool) -> None:
    rows = ({"label": "car", "score": 0.9},)
    assert evaluate_filter(text, metadata, ok=True, predictions=rows) is expected


def test_a_condition_compared_with_true_is_the_condition() -> None:
    assert isinstance(check_filter("(frame_number = 1) = TRUE").predicate, Compared)
    assert check_filter("(frame_number = 1) = TRUE") == check_filter("frame_number = 1")
