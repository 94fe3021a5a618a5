"""Points and areas, exactly; distances to the millimetre; any two geometries."""

from decimal import Decimal

import pytest

from inference_store.inference.errors import InvalidFilter, NotKept
from inference_store.query.filters.arithmetic import is_located, position_in
from inference_store.query.filters.typed import Area, Located, Ring
from tests.unit.query.filters.evaluation import check_filter, evaluate_filter
from tests.unit.query.filters.oracle import compute_distance


def _make_ring(*corners: tuple[float, float]) -> Ring:
    return tuple((Decimal(x), Decimal(y)) for x, y in (*corners, corners[0]))


_SQUARE = _make_ring((0, 0), (4, 0), (4, 4), (0, 4))
_HOLE = _make_ring((1, 1), (2, 1), (2, 2), (1, 2))
_FRAME = Area(_SQUARE, (_HOLE,))
_BOWL = Area(_make_ring((0, 0), (4, 0), (4, 4), (2, 1), (0, 4)))
_DIAMOND = Area(_make_ring((0, 2), (2, 0), (4, 2), (2, 4)))
_STAIRS = Area(_make_ring((0, 0), (4, 0), (4, 2), (2, 2), (2, 4), (0, 4)))


def test_finds_whether_a_point_lies_inside() -> None:
    for area, x, y, where in [
        (_FRAME, "3", "3", "inside"),
        (_FRAME, "1.5", "1.5", "outside"),
        (_FRAME, "1", "1.5", "edge"),
        (_FRAME, "4", "4", "edge"),
        (_FRAME, "4.0000000000000000000000000000000000001", "4", "outside"),
        (_FRAME, "3.9999999999999999999999999999999999999", "3", "inside"),
        # on a horizontal edge, and at its height beside it
        (_FRAME, "2", "0", "edge"),
        (_FRAME, "2", "4", "edge"),
        (_FRAME, "-1", "0", "outside"),
        (_FRAME, "5", "0", "outside"),
        (_FRAME, "-1", "4", "outside"),
        (_FRAME, "5", "4", "outside"),
        (_FRAME, "0.5", "1", "inside"),
        (_FRAME, "3", "2", "inside"),
        (_STAIRS, "3", "2", "edge"),
        (_STAIRS, "1", "2", "inside"),
        (_STAIRS, "-1", "2", "outside"),
        (_STAIRS, "5", "2", "outside"),
        # at exactly the height of a corner that both its edges leave to one side, and to two
        (_DIAMOND, "1", "0", "outside"),
        (_DIAMOND, "1", "4", "outside"),
        (_DIAMOND, "-1", "2", "outside"),
        (_DIAMOND, "2", "2", "inside"),
        (_DIAMOND, "5", "2", "outside"),
        (_DIAMOND, "0", "2", "edge"),
        # A ray through a corner at which one edge rises and another falls.
        (_BOWL, "-1", "1", "outside"),
        (_BOWL, "1", "1", "inside"),
        (_BOWL, "2", "1", "edge"),
        (_BOWL, "2", "1.5", "outside"),
        (_BOWL, "3", "2.5", "edge"),
    ]:
        mirrored = Area(area.outer[::-1], tuple(hole[::-1] for hole in area.holes))
        point = (Decimal(x), Decimal(y))
        assert position_in(area, point) == position_in(mirrored, point) == where, point


def test_edges_count_for_intersects_and_not_for_within() -> None:
    edge, inside = (Decimal(4), Decimal(1)), (Decimal(3), Decimal(3))
    assert is_located(Located("intersects", (_FRAME,)), edge)
    assert not is_located(Located("within", (_FRAME,)), edge)
    assert is_located(Located("within", (_FRAME,)), inside)
    assert is_located(Located("within", points=(edge,)), edge)


def test_a_line_there_and_back_has_an_edge_and_no_inside() -> None:
    line = Area(_make_ring((0, 0), (4, 4), (4, 0), (4, 4)))
    assert position_in(line, (Decimal(2), Decimal(2))) == "edge"
    assert position_in(line, (Decimal(3), Decimal(2))) == "outside"


def test_distances() -> None:
    paris = (Decimal("2.3522"), Decimal("48.8566"))
    london = (Decimal("-0.1276"), Decimal("51.5072"))
    assert compute_distance(paris, london) == pytest.approx(343_556, abs=1000)
    assert compute_distance(paris, paris) == 0
    pole, antipole = (Decimal(0), Decimal(90)), (Decimal(0), Decimal(-90))
    assert compute_distance(pole, antipole) == pytest.approx(3.141592653589793 * 6_371_008.8)
    west, east = (Decimal(-180), Decimal(5)), (Decimal(180), Decimal(5))
    assert compute_distance(east, west) == pytest.approx(0, abs=1e-6)


_TRIANGLE = "POLYGON((0 0, 4 0, 0 4, 0 0), (1 1, 1 2, 2 1, 1 1))"


def test_two_geometries() -> None:
    for first, second, expected in [
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
        # a corner of one that only touches an edge of the other, from either side
        ("POLYGON((0 0, 4 0, 2 2, 0 0))", "POLYGON((2 2, 4 4, 0 4, 2 2))", True),
        ("POLYGON((0 0, 4 0, 2 2, 0 0))", "POLYGON((1 0, 3 0, 2 -2, 1 0))", True),
        ("POLYGON((0 0, 4 0, 2 2, 0 0))", "POLYGON((1 -0.1, 3 -0.1, 2 -2, 1 -0.1))", False),
        (_TRIANGLE, "POINT(1.2 1.2)", False),
        (_TRIANGLE, "POINT(1 1)", True),
        (_TRIANGLE, "BBOX(1.1, 1.1, 1.2, 1.2)", False),
        (_TRIANGLE, "BBOX(0.1, 0.1, 0.2, 0.2)", True),
        (_TRIANGLE, "BBOX(-1, -1, 9, 9)", True),
        (_TRIANGLE, "BBOX(2.1, 2.1, 9, 9)", False),
        ("MULTIPOINT(9 9, 1 1)", "BBOX(0, 0, 2, 2)", True),
        ("MULTIPOLYGON(((8 8, 9 8, 9 9, 8 8)), ((0 0, 1 0, 1 1, 0 0)))", "POINT(1 0.5)", True),
        ("GEOMETRYCOLLECTION(POINT(9 9), POLYGON((0 0, 1 0, 1 1, 0 0)))", "POINT(1 0.5)", True),
    ]:
        for a, b in ((first, second), (second, first)):
            assert evaluate_filter(f"S_INTERSECTS({a}, {b})") is expected, (a, b)
            assert evaluate_filter(f"S_DISJOINT({a}, {b})") is not expected, (a, b)


def test_a_point_within_a_geometry() -> None:
    for points, expected in [
        ("POINT(1 1)", True),
        ("POINT(2 1)", False),
        ("MULTIPOINT(2 1, 1 1)", True),
        ("MULTIPOINT(2 1, 3 1)", False),
    ]:
        assert evaluate_filter(f"S_WITHIN({points}, BBOX(0, 0, 2, 2))") is expected, points
    with pytest.raises(NotKept, match="conf/spatial-functions"):
        check_filter("S_WITHIN(BBOX(0, 0, 2, 2), BBOX(0, 0, 2, 2))")


def test_the_location_and_itself() -> None:
    berlin = {"longitude": 13.4, "latitude": 52.5}
    for op, expected in (("S_INTERSECTS", True), ("S_WITHIN", True), ("S_DISJOINT", False)):
        assert evaluate_filter(f"{op}(location, location)", berlin) is expected
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
