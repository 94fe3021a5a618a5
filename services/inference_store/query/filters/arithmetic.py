"""Arithmetic of literal numbers and places; bounds within which that of Postgres is exact."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import MAX_EMAX, MIN_EMIN, ROUND_HALF_UP, Context, Decimal, Inexact, localcontext
from itertools import pairwise
from typing import Final, Literal, NamedTuple

from inference_store.inference.metadata import MetadataCaps

from .typed import Applied, Area, Constant, Function, Located, Metadata, Point, Value

MOST_EXPONENT: Final = 16
MOST_DIGITS: Final = 100_000
"""Digits before the point of any result; Postgres ends at 131,072."""
MOST_SCALE: Final = 16_000
"""Digits after the point; Postgres rounds a product at 16,383."""
QUOTIENT_SCALE: Final = 1000
"""Digits after the point that a quotient has at most."""
LEAST_DOUBLE, MOST_DOUBLE = Decimal("1e-300"), Decimal("1e300")
"""The bounds for the absolute value of a power's base, unless the base is zero."""
MOST_POWER: Final = Decimal(10**9)
"""The largest exponent."""
MOST_LOGARITHM: Final = 690.0
"""The largest natural logarithm of a power: up to it, the power is a double."""
SPELT: Final = r"^-?[0-9]{1,100}(\.[0-9]{1,100})?([eE][+-]?[0-9]{1,2})?$"
"""Texts that are read as the numbers they spell."""
_SIGNIFICANT: Final = 16
# Wide enough for all results that the check allows; a rounded result would be a bug, and raises.
EXACT: Final = Context(
    prec=2 * (MOST_DIGITS + MOST_SCALE), Emax=MAX_EMAX, Emin=MIN_EMIN, traps=[Inexact]
)


def calculate(op: Function, left: Decimal, right: Decimal) -> Decimal | None:
    """Return the exact result for two literals; None: there is none, or it is left to Postgres."""
    calculation = _CALCULATIONS.get(op)
    if calculation is None or (op in _DIVIDE and not right):
        return None
    try:
        return calculation(left, right)
    except Inexact:
        return None


def exact(number: Decimal | float) -> Decimal:
    """Return the number that is compared: for a double, the decimal of its shortest spelling."""
    if isinstance(number, float):
        return Decimal(repr(number).removesuffix(".0"))
    return Decimal(number)


def scale_of(number: Decimal) -> int:
    """Return the number of digits after the point, as written: 1.50 has two."""
    return max(0, -_exponent(number))


def _exponent(number: Decimal) -> int:
    exponent = number.as_tuple().exponent
    assert isinstance(exponent, int)
    return exponent


_DIVIDE: Final = frozenset({"/", "%", "div"})
# Postgres rounds a quotient of more digits.
_QUOTIENT: Final = Context(prec=_SIGNIFICANT, Emax=MAX_EMAX, Emin=MIN_EMIN, traps=[Inexact])
_CALCULATIONS: Final[Mapping[Function, Callable[[Decimal, Decimal], Decimal]]] = {
    "+": EXACT.add,
    "-": EXACT.subtract,
    "*": EXACT.multiply,
    "/": _QUOTIENT.divide,
    "%": EXACT.remainder,
    "div": EXACT.divide_int,
}


_CAPS: Final = MetadataCaps()


class Digits(NamedTuple):
    """Digits before the point and after it, at most."""

    before: int
    after: int

    @property
    def too_many(self) -> bool:
        """Check whether Postgres might not hold such a number exactly."""
        return self.before > MOST_DIGITS or self.after > MOST_SCALE


_STORED: Final = Digits(_CAPS.digits + _CAPS.exponent, _CAPS.digits + _CAPS.exponent)
_DOUBLE: Final = Digits(310, 345)


def digits_of_literal(number: Decimal) -> Digits:
    """Return the digits of a literal number."""
    return Digits(max(1, number.adjusted() + 1), scale_of(number))


def digits(value: Value) -> Digits:
    """Return the most digits that a value may have."""
    match value:
        case Constant(value=Decimal() as number):
            return digits_of_literal(number)
        case Metadata():
            return _STORED
        case Applied("^", (base, Constant(value=Decimal() as exponent))):
            before, after = digits(base)
            return Digits(max(1, before * int(exponent)), after * int(exponent))
        case Applied(op, args) if op in _DIGITS:
            return _DIGITS[op](*map(digits, args))
        case _:
            return _DOUBLE


_DIGITS: Final[Mapping[Function, Callable[[Digits, Digits], Digits]]] = {
    **dict.fromkeys(
        ("+", "-"), lambda a, b: Digits(max(a.before, b.before) + 1, max(a.after, b.after))
    ),
    "*": lambda a, b: Digits(a.before + b.before, a.after + b.after),
    **dict.fromkeys(("/", "div"), lambda a, b: Digits(a.before + b.after + 1, QUOTIENT_SCALE)),
    # Postgres computes the whole quotient first.
    "%": lambda a, b: Digits(a.before + b.after + 1, max(a.after, b.after)),
}


EARTH_RADIUS_METRES: Final = 6_371_008.8
DECIMALS_OF_DEGREES: Final = 30
"""Decimals to which coordinates are rounded for a distance: doubles underflow beyond them."""


def is_located(located: Located, point: Point) -> bool:
    """Check whether the relation holds for a point."""
    if point in located.points:
        return True
    positions = {"inside"} if located.relation == "within" else {"inside", "edge"}
    return any(position_in(area, point) in positions for area in located.areas)


def position_in(area: Area, point: Point) -> Literal["inside", "edge", "outside"]:
    """Return the position of a point. Inside: a ray to the east crosses an odd number of edges.

    The edges are those of all rings. The test uses signs of cross products in exact decimals,
    without division or rounding.
    """
    inside = False
    with localcontext(EXACT):
        for start, end in _edges(area):
            turn = _turn(start, end, point)
            if turn == 0 and _is_between(start, end, point):
                return "edge"
            upward = end[1] > start[1]
            if (start[1] > point[1]) != (end[1] > point[1]) and (turn > 0) == upward:
                inside = not inside
    return "inside" if inside else "outside"


def edges_of(area: Area) -> int:
    """Return the number of edges of an area."""
    return sum(1 for _ in _edges(area))


def points_within(points: Sequence[Point], areas: Sequence[Area], others: Sequence[Point]) -> bool:
    """Check that all points lie in the areas or equal another point, and not all are on an edge."""
    inside = Located("within", tuple(areas), tuple(others))
    reached = Located("intersects", tuple(areas), tuple(others))
    return all(is_located(reached, point) for point in points) and any(
        is_located(inside, p) for p in points
    )


def geometries_meet(
    areas: Sequence[Area],
    points: Sequence[Point],
    other_areas: Sequence[Area],
    other_points: Sequence[Point],
) -> bool:
    """Check whether two geometries have a point in common; an edge belongs to its area."""
    left = Located("intersects", tuple(areas), tuple(points))
    right = Located("intersects", tuple(other_areas), tuple(other_points))
    return (
        any(is_located(right, point) for point in points)
        or any(is_located(left, point) for point in other_points)
        or any(_areas_meet(a, b) for a in areas for b in other_areas)
    )


def _areas_meet(left: Area, right: Area) -> bool:
    with localcontext(EXACT):
        if any(_cross(*a, *b) for a in _edges(left) for b in _edges(right)):
            return True
    corners = [
        (ring[0], b) for a, b in ((left, right), (right, left)) for ring in (a.outer, *a.holes)
    ]
    return any(position_in(area, corner) == "inside" for corner, area in corners)


def _cross(start: Point, end: Point, other_start: Point, other_end: Point) -> bool:
    turns = [_side(start, end, p) for p in (other_start, other_end)]
    others = [_side(other_start, other_end, p) for p in (start, end)]
    if turns[0] != turns[1] and others[0] != others[1]:
        return True
    return any(
        turn == 0 and _is_between(start, end, p)
        for turn, p in zip(turns, (other_start, other_end), strict=True)
    ) or any(
        turn == 0 and _is_between(other_start, other_end, p)
        for turn, p in zip(others, (start, end), strict=True)
    )


def _side(start: Point, end: Point, point: Point) -> int:
    turn = _turn(start, end, point)
    return (turn > 0) - (turn < 0)


def _edges(area: Area) -> Iterator[tuple[Point, Point]]:
    for ring in (area.outer, *area.holes):
        yield from pairwise(ring)


def _turn(start: Point, end: Point, point: Point) -> Decimal:
    """Return a cross product: positive if the point is left of the edge, zero on its line."""
    return (end[0] - start[0]) * (point[1] - start[1]) - (end[1] - start[1]) * (point[0] - start[0])


def _is_between(start: Point, end: Point, point: Point) -> bool:
    return all(min(a, b) <= c <= max(a, b) for a, b, c in zip(start, end, point, strict=True))


def round_degrees(degrees: Decimal) -> Decimal:
    """Round to DECIMALS_OF_DEGREES."""
    if scale_of(degrees) <= DECIMALS_OF_DEGREES:
        return degrees
    wide = EXACT.copy()
    wide.clear_traps()
    return degrees.quantize(Decimal(1).scaleb(-DECIMALS_OF_DEGREES), ROUND_HALF_UP, wide)
