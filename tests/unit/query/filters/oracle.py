"""The meaning of typed filters, written down without SQL: what it answers is compared with this.

Its arithmetic has the results of Postgres' `numeric`, digit for digit, and of its doubles.
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import MAX_EMAX, MIN_EMIN, ROUND_HALF_UP, Context, Decimal, localcontext
from functools import lru_cache, reduce
from itertools import pairwise, product
from typing import Any, Final, Literal, TypeAlias

from inference_store.inference.metadata import COORDINATES, Family, Indexable, Metadata
from inference_store.query.conditions.sides import EARTH_RADIUS_METRES
from inference_store.query.filters import typed
from inference_store.query.filters.arithmetic import EXACT
from inference_store.query.filters.certain import FLAGS, Doubts
from inference_store.query.filters.operands import without_accents
from inference_store.query.filters.typed import Area, Function, Located, Point, Predicate

_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Facts:
    """One inference."""

    properties: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Values by name in `PROPERTIES`, except `location`; empty or missing: NULL."""
    metadata: Metadata = field(default_factory=Metadata)
    predictions: Sequence[Mapping[str, Any]] | None = ()
    """Columns by name in `PREDICTION_COLUMNS`; None: unknown."""

    def metadata_values(self, name: str, family: Family) -> tuple[Indexable, ...]:
        """Return the values of a key that can be compared as this family."""
        leaves = self.metadata.leaves
        return tuple(leaf.value for leaf in leaves if leaf.name == name and leaf.family == family)

    def is_missing(self, name: str) -> bool:
        """Check whether the key has no value of any kind; JSON null is none."""
        if any(leaf.name == name for leaf in self.metadata.leaves):
            return False
        return not any(p.name == name and not p.is_null for p in self.metadata.presences)

    def was_sent(self, name: str) -> bool:
        """Check whether the key was sent, whatever its value."""
        leaves, presences = self.metadata.leaves, self.metadata.presences
        return any(row.name == name for row in leaves) or any(p.name == name for p in presences)

    @property
    def location(self) -> Point | None:
        """The point of the reserved keys; None for coordinates off the map."""
        longitude, latitude = self._coordinate("longitude"), self._coordinate("latitude")
        return None if longitude is None or latitude is None else (longitude, latitude)

    def _coordinate(self, name: str) -> Decimal | None:
        for value in self.metadata_values(name, "number"):
            if isinstance(value, Decimal) and abs(value) <= COORDINATES[name]:
                return value
        return None


def milliseconds(start: datetime | None, end: datetime | None) -> tuple[Decimal, ...]:
    """Return the exact milliseconds between two instants, with six decimals as in Postgres."""
    if start is None or end is None:
        return ()
    microseconds = (end - start) // _MICROSECOND
    return (Decimal(microseconds * 1000).scaleb(-6),)


FOLDINGS: Final[Mapping[str, Callable[[str], str]]] = {
    "casei": str.casefold,
    "accenti": without_accents,
}


_SIGNIFICANT, _GROUP, _MOST_SCALE = 16, 4, 1000
_ROUNDED = Context(prec=1_500, Emax=MAX_EMAX, Emin=MIN_EMIN, rounding=ROUND_HALF_UP, traps=[])
Row: TypeAlias = Mapping[str, Any] | None
"""The prediction that a condition inside `prediction()` tests."""
Values: TypeAlias = Sequence[Any]

Meaning: TypeAlias = Callable[[Any, Facts, Row], bool | None]


def evaluate(predicate: Predicate, facts: Facts, row: Row = None) -> bool | None:
    """Return whether the predicate holds; None is NULL."""
    return _MEANINGS[type(predicate)](predicate, facts, row)


def _some(tests: Iterable[bool]) -> bool | None:
    """Return True if some combination satisfies the predicate, None if there is no combination."""
    nothing = True
    for satisfied in tests:
        if satisfied:
            return True
        nothing = False
    return None if nothing else False


@lru_cache(maxsize=64)
def like_expression(pattern: str) -> re.Pattern[str]:
    """Return a pattern of LIKE as a regular expression."""
    pieces = [""]
    for token in re.findall(r"\\.|[^\\]", pattern, re.DOTALL):
        if token == "%":
            pieces.append("")
        else:
            pieces[-1] += "." if token == "_" else re.escape(token[-1])
    first, *others = pieces
    # a piece between two `%` matches at its first occurrence, and is never tried again
    between = [f"(?>.*?{piece})" for piece in others[:-1]]
    rest = [".*", others[-1]] if others else []
    return re.compile("".join([first, *between, *rest]), re.DOTALL)


def _compared(predicate: typed.Compared, facts: Facts, row: Row) -> bool | None:
    op, values = predicate.op, predicate.values
    if op in ("in", "outside"):
        items = {item.value for item in values[1:] if isinstance(item, typed.Constant)}
        return _some((value in items) is (op == "in") for value in values_of(values[0], facts, row))
    test = _TESTS[op]
    return _some(test(*some) for some in product(*(values_of(of, facts, row) for of in values)))


_TESTS: Final[Mapping[str, Callable[..., bool]]] = {
    **typed.COMPARISONS,
    "between": lambda value, low, high: low <= value <= high,
    "like": lambda text, pattern: like_expression(pattern).fullmatch(text) is not None,
}


def _missing(predicate: typed.Missing, facts: Facts, row: Row) -> bool:
    if isinstance(predicate.of, typed.Metadata):
        return facts.is_missing(predicate.of.name)
    return not values_of(predicate.of, facts, row)


def _predicted(predicate: typed.Predicted, facts: Facts, _: Row) -> bool | None:
    if facts.predictions is None:
        return None
    return any(matches(predicate.condition, facts, row) for row in facts.predictions)


def matches(condition: Predicate | None, facts: Facts, row: Row) -> bool:
    """Check whether one prediction satisfies the condition; NULL counts as no."""
    return condition is None or evaluate(condition, facts, row) is True


def _located(predicate: typed.Located, facts: Facts, _: Row) -> bool | None:
    return None if facts.location is None else is_located(predicate, facts.location)


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


def _edges(area: Area) -> Iterator[tuple[Point, Point]]:
    for ring in (area.outer, *area.holes):
        yield from pairwise(ring)


def _turn(start: Point, end: Point, point: Point) -> Decimal:
    """Return a cross product: positive if the point is left of the edge, zero on its line."""
    return (end[0] - start[0]) * (point[1] - start[1]) - (end[1] - start[1]) * (point[0] - start[0])


def _is_between(start: Point, end: Point, point: Point) -> bool:
    return all(min(a, b) <= c <= max(a, b) for a, b, c in zip(start, end, point, strict=True))


def _not(predicate: typed.Not, facts: Facts, row: Row) -> bool | None:
    result = evaluate(predicate.of, facts, row)
    return None if result is None else not result


def _joined(parts: tuple[Predicate, ...], facts: Facts, row: Row, *, deciding: bool) -> bool | None:
    result: bool | None = not deciding
    for part in parts:
        truth = evaluate(part, facts, row)
        if truth is deciding:
            return deciding
        result = None if truth is None else result
    return result


_MEANINGS: Final[Mapping[type[Any], Meaning]] = {
    typed.Fixed: lambda predicate, _, __: predicate.value,
    typed.Compared: _compared,
    typed.Missing: _missing,
    typed.Unknown: lambda predicate, *of: evaluate(predicate.of, *of) is None,
    typed.Sent: lambda predicate, facts, _: facts.was_sent(predicate.name),
    typed.Predicted: _predicted,
    typed.Located: _located,
    typed.Not: _not,
    typed.And: lambda predicate, *of: _joined(predicate.parts, *of, deciding=False),
    typed.Or: lambda predicate, *of: _joined(predicate.parts, *of, deciding=True),
}


def values_of(value: typed.Value, facts: Facts, row: Row) -> Values:
    """Return the values as Decimal, str, bool or datetime, by their kind; empty: NULL."""
    return _VALUES[type(value)](value, facts, row)


def _read(stored: Any, kind: typed.Kind) -> Any:
    return exact(stored) if kind == "number" else stored


def _property(value: typed.Property, facts: Facts, _: Row) -> Values:
    stored = facts.properties.get(value.name, ())
    return [_read(value_stored, value.kind) for value_stored in stored if value_stored is not None]


def _column(value: typed.Column, _: Facts, row: Row) -> Values:
    assert row is not None, f"{value.name} is a column of a prediction, and there is none"
    stored = row.get(value.name)
    return () if stored is None else (_read(stored, value.kind),)


def _applied(value: typed.Applied, facts: Facts, row: Row) -> Values:
    operands = product(*(values_of(arg, facts, row) for arg in value.args))
    results = (calculate(value.function, *some) for some in operands)
    return [result for result in results if result is not None]


def _counted(value: typed.Counted, facts: Facts, _: Row) -> Values:
    if facts.predictions is None:
        return ()
    return (Decimal(sum(matches(value.condition, facts, row) for row in facts.predictions)),)


def _truthful(value: typed.PredicateValue, facts: Facts, row: Row) -> Values:
    truth = evaluate(value.of, facts, row)
    return () if truth is None else (truth,)


def _distance(value: typed.Distance, facts: Facts, _: Row) -> Values:
    if facts.location is None:
        return ()
    return (exact(compute_distance(facts.location, (value.longitude, value.latitude))),)


_VALUES: Final[Mapping[type[Any], Callable[[Any, Facts, Row], Values]]] = {
    typed.Constant: lambda value, _, __: (value.value,),
    typed.Metadata: lambda value, facts, _: facts.metadata_values(value.name, value.kind),
    typed.Property: _property,
    typed.Column: _column,
    typed.Applied: _applied,
    typed.Counted: _counted,
    typed.Distance: _distance,
    typed.PredicateValue: _truthful,
}


def calculate(function: Function, *args: Any) -> Any:
    """Return the result; None: there is none, as for a division by zero."""
    if function in {"/", "%", "div"} and not args[1]:
        return None
    return _FUNCTIONS[function](*args)


def _divided(left: Decimal, right: Decimal) -> Decimal:
    """Divide, rounded half away from zero, with the digits after the point of Postgres
    (`select_div_scale`)."""
    (weight, first), (divisor_weight, divisor_first) = _leading(left), _leading(right)
    quotient_weight = weight - divisor_weight - (first <= divisor_first)
    scale = _SIGNIFICANT - quotient_weight * _GROUP
    scale = min(max(scale, _scale_of(left), _scale_of(right), 0), _MOST_SCALE)
    dividend = _whole(left) * 10 ** (scale + _scale_of(right))
    divisor = _whole(right) * 10 ** _scale_of(left)
    quotient, rest = divmod(abs(dividend), abs(divisor))
    quotient += 2 * rest >= abs(divisor)
    signed = quotient if (dividend < 0) == (divisor < 0) else -quotient
    return EXACT.scaleb(Decimal(signed), -scale)


def exact(number: Decimal | float) -> Decimal:
    """Return the number that is compared: for a double, the decimal of its shortest spelling."""
    return Decimal(repr(number).removesuffix(".0") if isinstance(number, float) else number)


def _scale_of(number: Decimal) -> int:
    """Return the number of digits after the point, as written: 1.50 has two."""
    exponent = number.as_tuple().exponent
    assert isinstance(exponent, int)
    return max(0, -exponent)


def _quantize(number: Decimal, scale: int) -> Decimal:
    return number.quantize(Decimal(1).scaleb(-scale), context=_ROUNDED)


def _whole(number: Decimal) -> int:
    return int(EXACT.scaleb(number, _scale_of(number)))


def _leading(number: Decimal) -> tuple[int, int]:
    """Return the position of the first digit to the base 10,000, from the point, and the digit."""
    if not number:
        return 0, 0
    weight = number.adjusted() // _GROUP
    return weight, int(EXACT.scaleb(abs(number), -_GROUP * weight))


_FINE: Final = 320
"""Decimals of a power with a whole exponent."""


def _power(base: Decimal, exponent: Decimal) -> Decimal | None:
    """Return the power with the digits of Postgres; None: it is not real, or beyond 1e±299."""
    if not exponent or not base:
        return Decimal(1) if not exponent else Decimal(0) if exponent > 0 else None
    logarithm = _ROUNDED.multiply(exponent, _ROUNDED.ln(abs(base)))
    whole = exponent == exponent.to_integral_value()
    if (base < 0 and not whole) or abs(logarithm) > 690:
        return None
    scale = _SIGNIFICANT - int(logarithm / _ROUNDED.ln(Decimal(10)))
    least = _FINE if whole else 0
    scale = min(max(scale, _scale_of(base), _scale_of(exponent), least), _MOST_SCALE)
    return _quantize(_ROUNDED.power(base, exponent), scale)


_CALCULATIONS: Final[Mapping[str, Callable[[Decimal, Decimal], Decimal | None]]] = {
    "+": EXACT.add,
    "-": EXACT.subtract,
    "*": EXACT.multiply,
    "/": _divided,
    "%": EXACT.remainder,
    "div": EXACT.divide_int,
    "^": lambda base, exponent: reduce(EXACT.multiply, [base] * int(exponent), Decimal(1)),
    "power": _power,
}
_FUNCTIONS: Final[Mapping[str, Callable[..., Any]]] = {**_CALCULATIONS, **FOLDINGS}


def _radians(degrees: Decimal) -> float:
    return math.radians(float(_quantize(degrees, min(_scale_of(degrees), 30))))


def compute_distance(start: Point, end: Point) -> float:
    """Return the distance on the sphere (haversine), in the SQL's steps, so that doubles agree."""
    (east, north), (other_east, other_north) = (map(_radians, point) for point in (start, end))
    up, across = math.sin((other_north - north) / 2), math.sin((other_east - east) / 2)
    share = up * up + math.cos(north) * math.cos(other_north) * (across * across)
    return 2 * EARTH_RADIUS_METRES * math.asin(min(1.0, math.sqrt(share)))


def doubts_of(flags: Iterable[str]) -> Doubts:
    """Return the parts that the index may lack of an inference with these flags."""
    present = set(flags)
    return frozenset(doubt for doubt, names in FLAGS.items() if not present.isdisjoint(names))
