"""The relations of sets, of places and of times: A_…, S_… and T_…."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any, Final, Literal, NamedTuple, TypeAlias, cast

from inference_store.inference.json_text import is_number
from inference_store.query.cql2.tree import (
    Geometry,
    Instant,
    Interval,
    Listed,
    Named,
    Node,
    Operation,
    Refusal,
    Scalar,
)

from . import names, operands, typed
from .names import FilterCheck, KnownKey, meaningless
from .operands import point_of
from .typed import And, Compared, Constant, Kind, Not, Or, Predicate, Value, is_many

Relation: TypeAlias = Literal["equals", "contains", "containedby", "overlaps"]
_FLIPPED: Final[Mapping[Relation, Relation]] = {
    **{"equals": "equals", "overlaps": "overlaps"},
    **{"contains": "containedby", "containedby": "contains"},
}


def check_array_function(node: Operation, checking: FilterCheck) -> Predicate:
    """Return the relation of a name's values and constants. Raises InvalidFilter, NotKept,
    ImpossibleComparison."""
    operands.refuse_inside(node, checking)
    relation = cast(Relation, node.op.lower().removeprefix("a_"))
    known = checking.known_keys
    match [names.elements(arg, known) if isinstance(arg, Named) else arg for arg in node.args]:
        case (Named() as of, Listed() as items):
            pass
        case (Listed() as items, Named() as of):
            relation = _FLIPPED[relation]
        case _:
            raise _not_kept(node)
    odd = [item for item in items.items if not isinstance(item, Scalar | Instant)]
    if odd:
        raise _not_kept(odd[0])
    resolved = names.meaning(of, checking)
    constants: list[Constant] = []
    for item in items.items:
        constant = operands.value(item, operands.common((of, item), checking), checking)
        assert isinstance(constant, Constant)
        constants.append(constant)
    # of an empty array any kind would do: that of most values
    kinds = list(dict.fromkeys(constant.kind for constant in constants))
    kinds = kinds or [operands.common([of], checking)]
    refuse_one_value(of, checking)
    if relation in ("equals", "containedby"):
        # A value of another kind than the constants is equal to none of them.
        kinds += sorted(operands.possible(of, checking) - {*kinds})
    values = {kind: operands.of_kind(resolved, kind) for kind in kinds}
    if len(values) == 1:
        return relate_set(relation, values[kinds[0]], _constants_of(constants, kinds[0]))
    return _of_several_kinds(relation, values, constants)


def _not_kept(node: Node) -> Refusal:
    message = "this takes a name and values that are written out: A_CONTAINS(tags, ('a', 'b'))"
    return Refusal(message, node.at, conformance="array-functions")


def _constants_of(constants: Iterable[Constant], kind: Kind) -> tuple[Constant, ...]:
    return tuple(dict.fromkeys(constant for constant in constants if constant.kind == kind))


def relate_set(
    relation: Relation, of: typed.Metadata | typed.Property, items: tuple[Constant, ...]
) -> Predicate:
    """Return the relation of a name's values to constants; NULL if it has no value."""
    if relation == "overlaps":
        return Compared("in", (of, *items))
    contained = Not(Compared("outside", (of, *items)))
    if relation == "containedby":
        return contained
    each: list[Predicate] = [Compared("=", (of, item)) for item in items] or [_any_value(of)]
    return And((*each, contained)) if relation == "equals" else And(tuple(each))


def _any_value(of: typed.Metadata | typed.Property) -> Predicate:
    """Return a predicate that is true, or NULL if there is no value."""
    return Compared("outside", (of,))


def _of_several_kinds(
    relation: Relation,
    values: Mapping[Kind, typed.Metadata | typed.Property],
    constants: Sequence[Constant],
) -> Predicate:
    """Combine the relations of each kind; NULL only if there is no value of any kind."""
    items = {kind: _constants_of(constants, kind) for kind in values}
    if relation == "overlaps":
        return some_of_kinds([relate_set(relation, of, items[kind]) for kind, of in values.items()])
    some = Or(tuple(map(_any_value, values.values())))
    all_of: list[Predicate] = []
    if relation in ("equals", "contains"):
        for kind in (kind for kind in values if items[kind]):
            # false, not NULL, if there is no value of the kind
            there = Not(typed.Unknown(_any_value(values[kind])))
            all_of += [relate_set("contains", values[kind], items[kind]), there]
    if relation in ("equals", "containedby"):
        also = (*constants, *_numbers_of(constants))
        every = (
            relate_set("containedby", of, _constants_of(also, kind)) for kind, of in values.items()
        )
        all_of += [Or((part, typed.Unknown(part))) for part in every]
    return Or((And((*all_of, some)), Not(some)))


def some_of_kinds(parts: Sequence[Predicate]) -> Predicate:
    """Return a predicate: some part is true; NULL only if all parts are."""
    nowhere = And(tuple(And((part, Not(part))) for part in parts))
    return Or((*(And((part, Not(typed.Unknown(part)))) for part in parts), nowhere))


def _numbers_of(constants: Sequence[Constant]) -> Iterator[Constant]:
    """Yield the numbers that texts spell: a stored text that spells one is stored as both."""
    for constant in constants:
        if isinstance(constant.value, str) and is_number(constant.value):
            try:
                yield Constant("number", Decimal(constant.value))
            except InvalidOperation:  # beyond all stored numbers
                continue


def refuse_one_value(of: Named, checking: FilterCheck) -> None:
    """Raise InvalidFilter for a name with a single value; an unseen key may have several."""
    resolved = names.meaning(of, checking)
    if resolved.many or (isinstance(resolved, KnownKey) and not resolved.types):
        return
    suggestions = (f'"{of.name}[]"',) if f"{names.key_of(of)}[]" in checking.known_keys.keys else ()
    raise meaningless(of, f"{of.name!r} has one value: compare it by = or IN", suggestions)


SPATIAL_FUNCTIONS: Final = frozenset({"s_intersects", "s_within"})
_ALL_LITERALS: Final = "basic-spatial-functions-plus"
_BEYOND: Final = Decimal(181)
"""A degree beyond the antimeridian, where nothing lies: it is no edge of a box across it."""


def check_spatial_relation(node: Operation, checking: FilterCheck) -> Predicate:
    """Return the predicate for a spatial function. Raises InvalidFilter, NotKept."""
    operands.refuse_inside(node, checking)
    located = [not isinstance(arg, Geometry) for arg in node.args]
    if not any(located):
        message = "two geometries that are both written out are not compared"
        raise Refusal(message, node.at, conformance=_ALL_LITERALS)
    for is_name, arg in zip(located, node.args, strict=True):
        if is_name and not operands.is_location(arg, checking):
            message = "this takes the location and a geometry that is written out"
            raise meaningless(node, message, ("location",))
    if all(located):
        return Not(typed.Located("intersects"))
    shape = cast(Geometry, node.args[located.index(False)])
    areas, points = tuple(_areas(shape)), tuple(_points(shape))
    if node.op == "s_intersects" or located[0]:
        relation = "within" if node.op == "s_within" else "intersects"
        return typed.Located(cast(Any, relation), areas, points)
    # a geometry lies in the location: a point may, an area never
    each = [typed.Located("intersects", points=(point,)) for point in points]
    some = typed.Located("intersects", areas)
    return And((some, Not(some))) if areas else And(tuple(each))


def _parts(whole: Geometry) -> Iterator[Geometry]:
    many: dict[str, Any] = {"MultiPoint": "Point", "MultiPolygon": "Polygon"}
    for part in whole.geometries:
        yield from _parts(part)
    if whole.shape in many:
        for coordinates in cast(Any, whole.coordinates):
            yield Geometry(many[whole.shape], coordinates, at=whole.at)
    elif whole.shape != "GeometryCollection":
        yield whole


def _points(whole: Geometry) -> Iterator[typed.Point]:
    for part in _parts(whole):
        if part.shape == "Point":
            yield point_of(part.coordinates, part)


def _areas(whole: Geometry) -> Iterator[typed.Area]:
    for part in _parts(whole):
        if part.shape == "Polygon":
            rings = [
                tuple(point_of(corner, part) for corner in ring)
                for ring in cast(Any, part.coordinates)
            ]
            yield typed.Area(rings[0], tuple(rings[1:]))
        elif part.shape == "BBox":
            yield from _boxes(part)
        elif part.shape != "Point":
            message = f"{part.shape} is no geometry that a location can be asked for"
            raise Refusal(message, part.at, conformance=_ALL_LITERALS)


def _boxes(box: Geometry) -> Iterator[typed.Area]:
    """Yield the area of a box; two for one over the antimeridian, whose west exceeds its east."""
    numbers = cast(tuple[Decimal, ...], box.coordinates)
    half = len(numbers) // 2
    west, south = point_of(numbers[:2], box)
    east, north = point_of(numbers[half : half + 2], box)
    if west <= east:
        yield _box(west, south, east, north)
    else:
        yield _box(west, south, _BEYOND, north)
        yield _box(-_BEYOND, south, east, north)


def _box(west: Decimal, south: Decimal, east: Decimal, north: Decimal) -> typed.Area:
    return typed.Area(((west, south), (east, south), (east, north), (west, north), (west, south)))


class End(NamedTuple):
    """An end of a span of time. `open`: -1 is before all instants, 1 after them."""

    value: Value | None
    open: int = 0


class Span(NamedTuple):
    """A span of time; an instant is its own start and end."""

    start: End
    end: End
    instant: bool = False


def check_temporal_relation(node: Operation, checking: FilterCheck) -> Predicate:
    """Return a temporal function's comparisons. Raises InvalidFilter, ImpossibleComparison."""
    op = node.op
    operands.refuse_inside(node, checking)
    left, right = (_span(arg, checking) for arg in node.args)
    if left.instant and right.instant and op not in _OF_INSTANTS:
        raise meaningless(node, "this compares intervals; instants compare by = and <")
    if (left.instant or right.instant) and op not in {*_OF_INSTANTS, "t_contains"}:
        message = "this takes two intervals: INTERVAL('2026-11-01', '2026-11-02')"
        raise meaningless(node, message)
    if op == "t_contains" and (is_many(left.start.value) or is_many(right.start.value)):
        raise meaningless(node, "this takes names that have one value")
    if op == "t_intersects":
        return _intersects(left, right)
    # instants are their own start and end
    ends = _ENDS[op][:1] if left.instant and right.instant else _ENDS[op]
    parts = (_compare(getattr(left, a), is_so, getattr(right, b)) for a, is_so, b in ends)
    return And(tuple(parts))


def _span(node: Node, checking: FilterCheck) -> Span:
    if not isinstance(node, Interval):
        end = End(_instant(node, checking))
        return Span(end, end, instant=True)
    start, end = (
        End(None, side) if bound is None else End(_instant(bound, checking))
        for bound, side in ((node.start, -1), (node.end, 1))
    )
    if is_many(start.value) or is_many(end.value):
        raise meaningless(node, "an interval is made of names that have one value")
    match start.value, end.value:
        case Constant(value=first), Constant(value=last) if first > last:  # type: ignore[operator]
            raise meaningless(node, "an interval ends before it begins: its start comes first")
    return Span(start, end)


def _instant(node: Node, checking: FilterCheck) -> Value:
    if not isinstance(node, Named | Instant | Scalar):
        message = "a temporal function takes instants, intervals, and names of instants"
        raise meaningless(node, message)
    operands.require("timestamp", node, checking, at=node.at)
    return operands.value(node, "timestamp", checking)


def _compare(left: End, op: typed.Comparison, right: End) -> Predicate:
    """Return NULL if the compared value is missing, even with an open end."""
    if left.value is not None and right.value is not None:
        return Compared(op, (left.value, right.value))
    holds = typed.COMPARISONS[op](left.open, right.open)
    value = left.value or right.value
    if value is None:
        return typed.Fixed(holds)
    equality = Compared("=", (value, value))
    return equality if holds else Not(equality)


_OF_INSTANTS: Final = frozenset({"t_before", "t_equals", "t_intersects"})
_Ends: TypeAlias = Literal["start", "end"]
_ENDS: Final[Mapping[str, Sequence[tuple[_Ends, typed.Comparison, _Ends]]]] = {
    "t_before": [("end", "<", "start")],
    "t_contains": [("start", "<", "start"), ("end", ">", "end")],
    "t_equals": [("start", "=", "start"), ("end", "=", "end")],
    "t_finishes": [("start", ">", "start"), ("end", "=", "end")],
    "t_meets": [("end", "=", "start")],
    "t_overlaps": [("start", "<", "start"), ("end", ">", "start"), ("end", "<", "end")],
    "t_starts": [("start", "=", "start"), ("end", "<", "end")],
}
"""How the ends of the left span compare with those of the right one."""
TEMPORAL_FUNCTIONS: Final = frozenset({*_ENDS, "t_intersects"})


def _intersects(left: Span, right: Span) -> Predicate:
    if right.instant:
        left, right = right, left
    bounds = right.start.value, right.end.value
    if left.instant and left.start.value is not None and bounds[0] is not None and bounds[1]:
        # One predicate: if there are several instants, the same one must satisfy both bounds.
        return Compared("between", (left.start.value, bounds[0], bounds[1]))
    return And((_compare(left.start, "<=", right.end), _compare(left.end, ">=", right.start)))
