"""Points and areas, exactly; distances to the millimetre."""

from decimal import Decimal

import pytest

from inference_store.query.filters.geometry import holds, metres, position
from inference_store.query.filters.typed import Area, Located, Ring


def _make_ring(*corners: tuple[float | str, float | str]) -> Ring:
    return tuple((Decimal(x), Decimal(y)) for x, y in (*corners, corners[0]))


_SQUARE = _make_ring((0, 0), (4, 0), (4, 4), (0, 4))
_HOLE = _make_ring((1, 1), (2, 1), (2, 2), (1, 2))
_FRAME = Area(_SQUARE, (_HOLE,))
_BOWL = Area(_make_ring((0, 0), (4, 0), (4, 4), (2, 1), (0, 4)))


@pytest.mark.parametrize(
    ("area", "point", "where"),
    [
        (_FRAME, ("3", "3"), "inside"),
        (_FRAME, ("1.5", "1.5"), "outside"),
        (_FRAME, ("1", "1.5"), "edge"),
        (_FRAME, ("4", "4"), "edge"),
        (_FRAME, ("4.0000000000000000000000000000000000001", "4"), "outside"),
        (_FRAME, ("3.9999999999999999999999999999999999999", "3"), "inside"),
        (_FRAME, ("-1", "0"), "outside"),
        # A ray through a corner at which one edge rises and another falls.
        (_BOWL, ("-1", "1"), "outside"),
        (_BOWL, ("1", "1"), "inside"),
        (_BOWL, ("2", "1"), "edge"),
        (_BOWL, ("2", "1.5"), "outside"),
        (_BOWL, ("3", "2.5"), "edge"),
    ],
)
def test_finds_whether_a_point_lies_inside(area: Area, point: tuple[str, str], where: str) -> None:
    mirrored = Area(area.outer[::-1], tuple(hole[::-1] for hole in area.holes))
    x, y = map(Decimal, point)
    assert position(area, (x, y)) == where
    assert position(mirrored, (x, y)) == where


def test_edges_count_for_intersects_and_not_for_within() -> None:
    edge, inside = (Decimal(4), Decimal(1)), (Decimal(3), Decimal(3))
    assert holds(Located("intersects", (_FRAME,)), edge)
    assert not holds(Located("within", (_FRAME,)), edge)
    assert holds(Located("within", (_FRAME,)), inside)
    assert holds(Located("within", points=(edge,)), edge)


def test_a_line_there_and_back_has_an_edge_and_no_inside() -> None:
    line = Area(_make_ring((0, 0), (4, 4), (4, 0), (4, 4)))
    assert position(line, (Decimal(2), Decimal(2))) == "edge"
    assert position(line, (Decimal(3), Decimal(2))) == "outside"


def test_distances() -> None:
    paris, london = (
        (Decimal("2.3522"), Decimal("48.8566")),
        (Decimal("-0.1276"), Decimal("51.5072")),
    )
    assert metres(paris, london) == pytest.approx(343_556, abs=1000)
    assert metres(paris, paris) == 0
    pole, antipole = (Decimal(0), Decimal(90)), (Decimal(0), Decimal(-90))
    assert metres(pole, antipole) == pytest.approx(3.141592653589793 * 6_371_008.8)
    assert metres((Decimal(180), Decimal(5)), (Decimal(-180), Decimal(5))) == pytest.approx(
        0, abs=1e-6
    )
