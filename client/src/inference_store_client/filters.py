"""Filters as Python: `(meta.frame_number > 9000) & ~field.ok`.

An expression is a value: building one asks the store nothing. Its tree is CQL2-JSON, so no text is
quoted anywhere. What Python would silently read as something else (`and`, `or`, `not`, `in`,
chained comparisons, `&` without parentheses) raises FilterError with the remedy.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from math import isfinite
from typing import Any, Final, NoReturn, TypeAlias
from uuid import UUID

from inference_store_client.errors import FilterError
from inference_store_client.times import format_duration, format_instant

# Python values as parts of CQL2-JSON.

Tree: TypeAlias = Any
"""CQL2-JSON."""


class Node:
    """A part of a filter: CQL2-JSON."""

    __slots__ = ("_tree",)

    def __init__(self, tree: Tree) -> None:
        self._tree = tree

    @property
    def tree(self) -> Tree:
        """The part in CQL2-JSON."""
        return self._tree

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._tree})"


def make_operation(op: str, *args: Any) -> Tree:
    """Make an operation; the arguments are expressions or Python values."""
    return {"op": op, "args": [make_node(arg) for arg in args]}


def make_node(value: Any) -> Tree:  # noqa: PLR0911
    """Return a value in CQL2-JSON. Raises FilterError for what a filter cannot hold."""
    match value:
        case Node():
            return value.tree
        case bool() | str() | int():
            return value
        case float() | Decimal():
            return _check_number(value)
        case datetime():
            return {"timestamp": format_instant(value)}
        case date():
            return {"date": value.isoformat()}
        case timedelta():
            return {"op": "duration", "args": [format_duration(value)]}
        case UUID():
            return str(value)
        case Mapping():  # a geometry
            return dict(value)
        case list() | tuple() | set() | frozenset():
            return [make_node(item) for item in value]
    raise _make_refusal(value)


def _check_number(value: float | Decimal) -> float | Decimal:
    if not isfinite(value):
        raise FilterError(f"{value} is not a number of a filter")
    return value


def _make_refusal(value: Any) -> FilterError:
    if value is None:
        return FilterError("nothing is equal to None: write .is_null(), or ~….is_null()")
    kind = type(value)
    hint = ": write value.item()" if kind.__module__ == "numpy" else ""
    return FilterError(f"a filter cannot hold a {kind.__module__}.{kind.__qualname__}{hint}")


_LOGIC: Final = (
    "an expression is neither true nor false before the store evaluates it: write (a) & (b) for"
    " `and`, (a) | (b) for `or`, ~(a) for `not`, .between(1, 5) for `1 <= a <= 5`, and"
    " .isin([…]) for `in`"
)
_PARENTHESES: Final = (
    "`&` and `|` bind closer than comparisons: put parentheses around each, as in"
    " (meta.a > 1) & (meta.b == 'x')"
)


class Expression(Node):
    """A part of a filter. Conditions and booleans combine with `&`, `|` and `~`."""

    __slots__ = ()

    def __and__(self, other: "Expression") -> "Condition":
        return _combine("and", self, other)

    def __or__(self, other: "Expression") -> "Condition":
        return _combine("or", self, other)

    def __invert__(self) -> "Condition":
        return Condition(make_operation("not", self))

    def __rand__(self, other: object) -> NoReturn:
        raise FilterError(_PARENTHESES)

    __ror__ = __rand__

    def __bool__(self) -> NoReturn:
        raise FilterError(_LOGIC)

    def __len__(self) -> NoReturn:
        raise FilterError("an expression has no length: ask the inferences, .count()")

    def __iter__(self) -> Iterator[Any]:
        raise FilterError("an expression cannot be iterated over: iterate over the inferences")

    def __contains__(self, item: object) -> NoReturn:
        raise FilterError("`in` asks Python, not the store: write .isin([…])")


class Condition(Expression):
    """What is true or false of an inference."""

    __slots__ = ()

    def _refuse(self, _: object) -> NoReturn:
        raise FilterError(
            f"a condition is not compared: write it alone, or ~ before it; {_PARENTHESES}"
        )

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse
    __hash__ = None  # type: ignore[assignment]


Compare: TypeAlias = Callable[["Value", object], Condition]
Calculate: TypeAlias = Callable[["Value", object], "Value"]


def _compare(op: str) -> Compare:
    return lambda value, other: Condition(make_operation(op, value, other))


def _calculate(op: str) -> Calculate:
    return lambda value, other: Value(make_operation(op, value, other))


def _calculate_from(op: str) -> Calculate:
    """Return the operation whose value is on the right."""
    return lambda value, other: Value(make_operation(op, other, value))


class Value(Expression):
    """A value of an inference: a name, a function, or a calculation."""

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]

    __eq__ = _compare("=")  # type: ignore[assignment]
    __ne__ = _compare("<>")  # type: ignore[assignment]
    __lt__ = _compare("<")
    __le__ = _compare("<=")
    __gt__ = _compare(">")
    __ge__ = _compare(">=")
    __add__, __radd__ = _calculate("+"), _calculate_from("+")
    __sub__, __rsub__ = _calculate("-"), _calculate_from("-")
    __mul__, __rmul__ = _calculate("*"), _calculate_from("*")
    __truediv__, __rtruediv__ = _calculate("/"), _calculate_from("/")
    __mod__ = _calculate("%")
    __pow__ = _calculate("^")

    def __neg__(self) -> "Value":
        return -1 * self

    def between(self, lower: object, upper: object) -> Condition:
        """Whether it lies between two values, or is one of them."""
        return Condition(make_operation("between", self, lower, upper))

    def like(self, pattern: "str | Value") -> Condition:
        """Whether a text matches: `%` is any text, `_` is one character, and `\\` takes the next
        character as it is."""
        return Condition(make_operation("like", self, pattern))

    def isin(self, values: Iterable[object]) -> Condition:
        """Whether it is one of the values."""
        if isinstance(values, str | bytes):
            raise FilterError(f"isin takes a list: isin([{values!r}])")
        return Condition(make_operation("in", self, list(values)))

    def is_null(self) -> Condition:
        """Whether there is no value."""
        return Condition(make_operation("isNull", self))


def _combine(op: str, left: Expression, right: object) -> Condition:
    if not isinstance(right, Expression):
        raise FilterError(_PARENTHESES)
    tree = left.tree
    first = tree["args"] if isinstance(tree, dict) and tree.get("op") == op else [tree]
    return Condition({"op": op, "args": [*first, make_node(right)]})


# Names in filters: metadata keys, properties of the inference, columns of a prediction.


@dataclass(frozen=True, slots=True)
class Names:
    """Names of one kind, as attributes or as items: `meta.frame_number`, `meta["camera-id"]`.

    `_prefix` says which kind, so that a metadata key is never taken for a property.
    """

    _prefix: str

    def __getattr__(self, name: str) -> Value:
        if name.startswith("__"):
            raise AttributeError(name)
        return self[name]

    def __getitem__(self, name: str) -> Value:
        return Value({"property": self._prefix + name})


meta: Final = Names("metadata.")
"""Metadata keys. A path reaches into a JSON value: `meta["camera_position.angle"]`; the elements of
an array are `meta["tags[]"]`."""
field: Final = Names("inference.")
"""Properties of the inference: `field.ok`, `field.received_at`, `field.top_label`."""
predicted: Final = Names("")
"""Columns of a prediction, inside `prediction(…)`: `predicted.label`, `predicted.score`."""


# Times in filters: intervals, and how they lie to each other.

Time: TypeAlias = Value | Node | datetime | date
Bound: TypeAlias = Value | datetime | date | str | None
Relation: TypeAlias = Callable[[Time, Time], Condition]


def interval(start: Bound, end: Bound) -> Node:
    """Make an interval. A bound is an instant, a name, or None for an open end."""
    return Node({"interval": [_make_bound(start), _make_bound(end)]})


def _make_bound(bound: Bound) -> Tree:
    match bound:
        case None:
            return ".."
        case Node():
            return bound.tree
        case datetime():
            return format_instant(bound)
        case date():
            return bound.isoformat()
    return bound


def _relation(op: str) -> Relation:
    def compare(left: Time, right: Time) -> Condition:
        return Condition(make_operation(op, left, right))

    compare.__doc__ = f"Whether `{op}` holds of two instants or intervals."
    return compare


t_after: Final = _relation("t_after")
t_before: Final = _relation("t_before")
t_contains: Final = _relation("t_contains")
t_disjoint: Final = _relation("t_disjoint")
t_during: Final = _relation("t_during")
t_equals: Final = _relation("t_equals")
t_finished_by: Final = _relation("t_finishedBy")
t_finishes: Final = _relation("t_finishes")
t_intersects: Final = _relation("t_intersects")
t_meets: Final = _relation("t_meets")
t_met_by: Final = _relation("t_metBy")
t_overlapped_by: Final = _relation("t_overlappedBy")
t_overlaps: Final = _relation("t_overlaps")
t_started_by: Final = _relation("t_startedBy")
t_starts: Final = _relation("t_starts")


# Places in filters. Longitude comes first, as in GeoJSON.

Geometry: TypeAlias = Mapping[str, Any]
"""GeoJSON, or a box."""
Position: TypeAlias = tuple[float, float]
"""Longitude and latitude."""


def point(longitude: float, latitude: float) -> Geometry:
    """Make a point."""
    return {"type": "Point", "coordinates": [longitude, latitude]}


def bbox(west: float, south: float, east: float, north: float) -> Geometry:
    """Make a box; if its west is greater than its east, it crosses the antimeridian."""
    return {"bbox": [west, south, east, north]}


def polygon(*rings: Sequence[Position]) -> Geometry:
    """Make a polygon of its outline and its holes; each ring ends where it begins."""
    return {"type": "Polygon", "coordinates": [[list(at) for at in ring] for ring in rings]}


def s_intersects(location: Value, geometry: Geometry) -> Condition:
    """Whether a place is in a geometry, or on its edge."""
    return Condition(make_operation("s_intersects", location, geometry))


def s_within(location: Value, geometry: Geometry) -> Condition:
    """Whether a place is inside a geometry."""
    return Condition(make_operation("s_within", location, geometry))


def s_disjoint(location: Value, geometry: Geometry) -> Condition:
    """Whether a place is outside a geometry."""
    return Condition(make_operation("s_disjoint", location, geometry))


# Functions of the filter language.


def prediction(*conditions: Expression, **columns: object) -> Condition:
    """Whether one prediction satisfies all of it at the same time.

    `prediction(predicted.score < 0.4, label="person")`: conditions of columns, and columns that are
    equal to a value (or to one of a list). Python has no spelling for `score < 0.4` as a keyword.
    A condition reads like any other of a filter, so nothing like `score=lt(0.4)` has to be learned,
    and a prediction can have what keywords cannot say: `|`, `~`, one column beside another.
    """
    return Condition(_of_predictions("prediction", conditions, columns))


def count_predictions(*conditions: Expression, **columns: object) -> Value:
    """How many predictions satisfy all of it; without anything: how many there are."""
    return Value(_of_predictions("count_predictions", conditions, columns))


def truth(*conditions: Expression, **columns: object) -> Condition:
    """Whether one item of ground truth satisfies all of it: `truth(label="car")`."""
    return Condition(_of_predictions("truth", conditions, columns))


def count_truth(*conditions: Expression, **columns: object) -> Value:
    """How many items of ground truth satisfy all of it."""
    return Value(_of_predictions("count_truth", conditions, columns))


def _of_predictions(
    op: str, conditions: tuple[Expression, ...], columns: Mapping[str, object]
) -> Tree:
    every = [*(_equal(name, value) for name, value in columns.items()), *conditions]
    if not every:
        return make_operation(op)
    whole, *more = every
    for condition in more:
        whole = whole & condition
    return make_operation(op, whole)


def _equal(column: str, value: object) -> Condition:
    name = predicted[column]
    return name.isin(value) if isinstance(value, list | tuple | set) else name == value


def sent(key: Value) -> Condition:
    """Whether a metadata key was sent at all, even as JSON null."""
    return Condition(make_operation("sent", key))


def casei(text: object) -> Value:
    """The text without the case of letters: `casei(meta.operator) == casei("zoë")`."""
    return Value(make_operation("casei", text))


def accenti(text: object) -> Value:
    """The text without accents."""
    return Value(make_operation("accenti", text))


def div(left: object, right: object) -> Value:
    """The whole part of a quotient; -7 by 2 is -3, as in SQL."""
    return Value(make_operation("div", left, right))


def now() -> Value:
    """The time when the store is asked: `field.received_at > now() - timedelta(hours=1)`."""
    return Value(make_operation("now"))


def duration(text: str | timedelta) -> Value:
    """A duration in ISO 8601: `duration("P2M")`; months and years follow the calendar."""
    spelled = text if isinstance(text, str) else format_duration(text)
    return Value(make_operation("duration", spelled))


def distance(location: Value, point: Geometry) -> Value:
    """Metres between a place and a point: `distance(field.location, point(-43.5, -32.5))`."""
    return Value(make_operation("distance", location, point))


def function(name: str, *args: object) -> Value:
    """Any function of the language by its name: `function("casei", meta.operator)`."""
    return Value(make_operation(name, *args))


def a_contains(array: object, values: object) -> Condition:
    """Whether an array, such as `meta["tags[]"]`, has all of the values."""
    return Condition(make_operation("a_contains", array, values))


def a_contained_by(array: object, values: object) -> Condition:
    """Whether all of an array are among the values."""
    return Condition(make_operation("a_containedBy", array, values))


def a_equals(array: object, values: object) -> Condition:
    """Whether an array has the values and no others."""
    return Condition(make_operation("a_equals", array, values))


def a_overlaps(array: object, values: object) -> Condition:
    """Whether an array has at least one of the values."""
    return Condition(make_operation("a_overlaps", array, values))


Filter: TypeAlias = Expression | str | Mapping[str, Any]
"""An expression, CQL2-Text, or CQL2-JSON."""


def join_filters(first: Filter, second: Filter) -> Filter:
    """Return the filter of what satisfies both. Raises FilterError for a text beside another."""
    if isinstance(first, str) and isinstance(second, str):
        return f"({first}) AND ({second})"
    if isinstance(first, str) or isinstance(second, str):
        raise FilterError("a filter in text joins one in text alone: write both in one form")
    return Condition({"op": "and", "args": [_get_tree(first), _get_tree(second)]})


def encode_filter(filter: Filter) -> dict[str, Any]:
    """Return the members of a request's body for a filter."""
    if isinstance(filter, str):
        return {"filter": filter, "filter_lang": "cql2-text"}
    return {"filter": _get_tree(filter), "filter_lang": "cql2-json"}


def _get_tree(filter: Expression | Mapping[str, Any]) -> Tree:
    return filter.tree if isinstance(filter, Expression) else dict(filter)
