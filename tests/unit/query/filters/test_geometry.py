"""Points and areas, exactly; distances to the millimetre."""

from decimal import Decimal

import pytest

from inference_store.inference.errors import InvalidFilter
from inference_store.query.filters.typed import Area, Located, Ring
from tests.unit.query.filters.evaluation import check_filter, evaluate_filter
from tests.unit.query.filters.oracle import compute_distance, is_located, position_in


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


def test_the_location_and_itself() -> None:
    berlin = {"longitude": 13.4, "latitude": 52.5}
    for op, expected in (("S_INTERSECTS", True), ("S_WITHIN", True), ("S_DISJOINT", False)):
        assert evaluate_filter(f"{op}(location, location)", berlin) is expected
        assert evaluate_filter(f"{op}(location, location)") is None


def test_a_collection_has_no_more_positions_than_a_geometry() -> None:
    points = "MULTIPOINT(" + ", ".join(f"{n / 10} 1" for n in range(600)) + ")"
    check_filter(f"S_INTERSECTS(location, GEOMETRYCOLLECTION({points}))")
    with pytest.raises(InvalidFilter, match="1,000 positions"):
        check_filter(f"S_INTERSECTS(location, GEOMETRYCOLLECTION({points}, {points}))")
