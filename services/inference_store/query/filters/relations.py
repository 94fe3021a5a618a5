"""The relations of sets, of places and of times: A_…, S_… and T_…."""

from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final, Literal, NamedTuple, TypeAlias, cast

from inference_store.query.cql2 import tree
from inference_store.query.properties import Property

from . import names, operands, typed
from .names import FilterCheck, KnownKey, meaningless
from .operands import point_of
from .typed import And, Compared, Constant, Kind, Not, Or, Predicate, Value

Relation: TypeAlias = Literal["equals", "contains", "containedBy", "overlaps"]
ARRAY_FUNCTIONS: Final = ("a_equals", "a_contains", "a_containedBy", "a_overlaps")
_FLIPPED: Final[Mapping[Relation, Relation]] = {
    **{"contains": "containedBy", "containedBy": "contains"}
}


def check_array_function(node: tree.Operation, checking: FilterCheck) -> Predicate:
    """Return the relation of a name's values and constants. Raises InvalidFilter, NotKept,
    ImpossibleComparison."""
    operands.refuse_inside(node, checking)
    relation = cast(Relation, node.op.removeprefix("a_"))
    known = checking.known_keys
    match [names.elements(arg, known) if isinstance(arg, tree.Named) else arg for arg in node.args]:
        case (tree.Named() as of, tree.Listed() as items):
            pass
        case (tree.Listed() as items, tree.Named() as of):
            relation = _FLIPPED.get(relation, relation)
        case _:
            raise _not_kept(node)
    resolved = names.meaning(of, checking)
    constants: dict[Kind, dict[Constant, None]] = {}
    for item in items.items:
        if not isinstance(item, tree.Scalar | tree.Instant):
            raise _not_kept(item)
        kind = operands.common((of, item), checking)
        constants.setdefault(kind, {})[operands.constant(item, kind)] = None
    if not constants:  # of an empty array any kind would do: that of most values
        constants[operands.common([of], checking)] = {}
    _refuse_one_value(of, resolved, checking)
    if relation in ("equals", "containedBy"):
        # A value of another kind than the constants is equal to none of them.
        for kind in sorted(operands.possible(of, checking) - {*constants}):
            constants[kind] = {}
    return relate_sets(
        relation, {operands.of_kind(resolved, kind): (*some,) for kind, some in constants.items()}
    )


def _not_kept(node: tree.Node) -> tree.Refusal:
    message = "this takes a name and values that are written out: A_CONTAINS(tags, ('a', 'b'))"
    return tree.Refusal(message, node.at, conformance="array-functions")


Sets: TypeAlias = Mapping[typed.Metadata | typed.Property, tuple[Constant, ...]]
"""Of a name's values of each kind, the constants that they are related to."""


def relate_sets(relation: Relation, sets: Sets) -> Predicate:
    """Return the relation of a name's values to constants; NULL if it has no value of any kind."""
    if len(sets) == 1:
        [(of, items)] = sets.items()
        return _relate_set(relation, of, items)
    if relation == "overlaps":
        return some_of_kinds([Compared("in", (of, *items)) for of, items in sets.items()])
    all_of: list[Predicate] = []
    if relation != "containedBy":
        all_of += [_sure(_relate_set("contains", of, sets[of])) for of in sets if sets[of]]
    if relation != "contains":
        # a stored text that spells a number is stored as both
        texts = [item.value for items in sets.values() for item in items if item.kind == "string"]
        spelt = [operands.read_as("number", text) for text in texts]
        numbers = tuple(Constant("number", number) for number in spelt if number is not None)
        for of, items in sets.items():
            also = numbers if of.kind == "number" else ()
            all_of.append(Not(_sure(Compared("outside", (of, *items, *also)))))
    some = Or(tuple(map(any_value, sets)))
    return Or((And((*all_of, some)), Not(some)))


def _relate_set(
    relation: Relation, of: typed.Metadata | typed.Property, items: tuple[Constant, ...]
) -> Predicate:
    if relation == "overlaps":
        return Compared("in", (of, *items))
    contained = Not(Compared("outside", (of, *items)))
    if relation == "containedBy":
        return contained
    each: list[Predicate] = [Compared("=", (of, item)) for item in items] or [any_value(of)]
    return And((*each, contained)) if relation == "equals" else And(tuple(each))


def any_value(of: Value) -> Predicate:
    """Return a predicate that is true, or NULL if there is no value."""
    return Compared("outside", (of,))


def _sure(predicate: Predicate) -> Predicate:
    """Return a predicate that is false instead of NULL."""
    return And((predicate, Not(typed.Unknown(predicate))))


def some_of_kinds(parts: Sequence[Predicate]) -> Predicate:
    """Return a predicate: some part is true; NULL only if all parts are."""
    return Or((*map(_sure, parts), And(tuple(And((part, Not(part))) for part in parts))))


def _refuse_one_value(of: tree.Named, resolved: KnownKey | Property, checking: FilterCheck) -> None:
    """Refuse a name with a single value; an unseen key may have several."""
    if resolved.many or (isinstance(resolved, KnownKey) and not resolved.types):
        return
    suggestions = (f'"{of.name}[]"',) if f"{names.key_of(of)}[]" in checking.known_keys.keys else ()
    raise meaningless(of, f"{of.name!r} has one value: compare it by = or IN", suggestions)


SPATIAL_FUNCTIONS: Final = frozenset({"s_intersects", "s_within"})
_BEYOND: Final = Decimal(181)
"""A degree beyond the antimeridian, where nothing lies: it is no edge of a box across it."""


def check_spatial_relation(node: tree.Operation, checking: FilterCheck) -> Predicate:
    """Return the predicate for a spatial function. Raises InvalidFilter, NotKept."""
    operands.refuse_inside(node, checking)
    located = [not isinstance(arg, tree.Geometry) for arg in node.args]
    if not any(located):
        message = "two geometries that are both written out are not compared"
        raise tree.Refusal(message, node.at, conformance="basic-spatial-functions-plus")
    for is_name, arg in zip(located, node.args, strict=True):
        if is_name and not operands.is_location(arg, checking):
            message = "this takes the location and a geometry that is written out"
            raise meaningless(node, message, ("location",))
    if all(located):
        return Not(typed.Located("intersects"))
    shape = cast(tree.Geometry, node.args[located.index(False)])
    areas, points = list[typed.Area](), list[typed.Point]()
    for part in _parts(shape):
        if part.shape == "Point":
            points.append(point_of(part.coordinates, part))
        elif part.shape == "BBox":
            areas += _boxes(part)
        else:
            rings = cast(Any, part.coordinates)
            outer, *holes = (tuple(point_of(at, part) for at in ring) for ring in rings)
            areas.append(typed.Area(outer, tuple(holes)))
    if node.op == "s_intersects" or located[0]:
        relation = "within" if node.op == "s_within" else "intersects"
        return typed.Located(cast(Any, relation), tuple(areas), tuple(points))
    # a geometry lies in the location: a point may, an area never
    each = [typed.Located("intersects", points=(point,)) for point in points]
    some = typed.Located("intersects", tuple(areas))
    return And((some, Not(some))) if areas else And(tuple(each))


def _parts(whole: tree.Geometry) -> Iterator[tree.Geometry]:
    many: dict[str, Any] = {"MultiPoint": "Point", "MultiPolygon": "Polygon"}
    for part in whole.geometries:
        yield from _parts(part)
    if whole.shape in many:
        for coordinates in cast(Any, whole.coordinates):
            yield tree.Geometry(many[whole.shape], coordinates, at=whole.at)
    elif whole.shape != "GeometryCollection":
        yield whole


def _boxes(box: tree.Geometry) -> Iterator[typed.Area]:
    """Yield the area of a box; two for one over the antimeridian, whose west exceeds its east."""
    numbers = cast(tuple[Decimal, ...], box.coordinates)
    half = len(numbers) // 2
    west, south = point_of(numbers[:2], box)
    east, north = point_of(numbers[half : half + 2], box)
    spans = [(west, east)] if west <= east else [(west, _BEYOND), (-_BEYOND, east)]
    for w, e in spans:
        yield typed.Area(((w, south), (e, south), (e, north), (w, north), (w, south)))


End: TypeAlias = Value | int
"""An end of a span of time; -1 is before all instants, 1 after them."""


class Span(NamedTuple):
    """A span of time; an instant is its own start and end."""

    start: End
    end: End
    instant: bool = False


def check_temporal_relation(node: tree.Operation, checking: FilterCheck) -> Predicate:
    """Return a temporal function's comparisons. Raises InvalidFilter, ImpossibleComparison."""
    op = node.op
    operands.refuse_inside(node, checking)
    left, right = (_span(arg, checking) for arg in node.args)
    if left.instant and right.instant and op not in _OF_INSTANTS:
        raise meaningless(node, "this compares intervals; instants compare by = and <")
    if (left.instant or right.instant) and op not in {*_OF_INSTANTS, "t_contains"}:
        message = "this takes two intervals: INTERVAL('2026-11-01', '2026-11-02')"
        raise meaningless(node, message)
    if op == "t_contains" and (_is_many(left.start) or _is_many(right.start)):
        raise meaningless(node, "this takes names that have one value")
    if op == "t_intersects":
        left, right = (right, left) if right.instant else (left, right)
        values = [end for end in (left.start, *right[:2]) if not isinstance(end, int)]
        if left.instant and len(values) == 3:
            # One predicate: of several instants the same one must satisfy both bounds.
            return Compared("between", tuple(values))
    # instants are their own start and end
    ends = _ENDS[op][:1] if left.instant and right.instant else _ENDS[op]
    parts = (_compare(getattr(left, a), is_so, getattr(right, b)) for a, is_so, b in ends)
    return And(tuple(parts))


def _span(node: tree.Node, checking: FilterCheck) -> Span:
    if not isinstance(node, tree.Interval):
        at = _instant(node, checking)
        return Span(at, at, instant=True)
    start = -1 if node.start is None else _instant(node.start, checking)
    end = 1 if node.end is None else _instant(node.end, checking)
    if _is_many(start) or _is_many(end):
        raise meaningless(node, "an interval is made of names that have one value")
    match start, end:
        case Constant(value=first), Constant(value=last) if first > last:  # type: ignore[operator]
            raise meaningless(node, "an interval ends before it begins: its start comes first")
    return Span(start, end)


def _is_many(end: End) -> bool:
    return not isinstance(end, int) and typed.is_many(end)


def _instant(node: tree.Node, checking: FilterCheck) -> Value:
    if not isinstance(node, tree.Named | tree.Instant | tree.Scalar):
        message = "a temporal function takes instants, intervals, and names of instants"
        raise meaningless(node, message)
    operands.require("timestamp", node, checking, at=node.at)
    return operands.value(node, "timestamp", checking)


def _compare(left: End, op: typed.Comparison, right: End) -> Predicate:
    """Return NULL if the compared value is missing, even with an open end."""
    values = tuple(end for end in (left, right) if not isinstance(end, int))
    if len(values) == 2:
        return Compared(op, values)
    order = [end if isinstance(end, int) else 0 for end in (left, right)]
    holds = typed.COMPARISONS[op](*order)
    if not values or isinstance(values[0], Constant):
        return typed.Fixed(holds)
    return any_value(values[0]) if holds else Not(any_value(values[0]))


_OF_INSTANTS: Final = frozenset({"t_before", "t_equals", "t_intersects"})
_Ends: TypeAlias = Literal["start", "end"]
_ENDS: Final[Mapping[str, Sequence[tuple[_Ends, typed.Comparison, _Ends]]]] = {
    "t_before": [("end", "<", "start")],
    "t_contains": [("start", "<", "start"), ("end", ">", "end")],
    "t_equals": [("start", "=", "start"), ("end", "=", "end")],
    "t_finishes": [("start", ">", "start"), ("end", "=", "end")],
    "t_intersects": [("start", "<=", "end"), ("end", ">=", "start")],
    "t_meets": [("end", "=", "start")],
    "t_overlaps": [("start", "<", "start"), ("end", ">", "start"), ("end", "<", "end")],
    "t_starts": [("start", "=", "start"), ("end", "<", "end")],
}
"""How the ends of the left span compare with those of the right one."""
TEMPORAL_FUNCTIONS: Final = frozenset(_ENDS)
