"""A filter with types: the result of the check, which becomes SQL.

It has values and predicates. A *value* stands for the values, of one kind, that an inference has:
none (NULL), one, or several (`tags[]`). A *predicate* is true, false or NULL for an inference. A
predicate over values tests every combination of them: it is true if some combination satisfies it,
NULL if there is no combination, else false. A calculation without a result (a division by zero) is
no combination. `Not` negates the whole; `And` and `Or` are SQL's.

Inside `Predicted` and `Counted`, the same holds for one prediction, or one item of ground truth;
`Column` exists only there.
"""

import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any, Final, Literal, TypeAlias

Kind: TypeAlias = Literal["number", "string", "bool", "timestamp"]
Comparison: TypeAlias = Literal["=", "<>", "<", "<=", ">", ">="]
COMPARISONS: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    **{"=": operator.eq, "<>": operator.ne, "<": operator.lt},
    **{"<=": operator.le, ">": operator.gt, ">=": operator.ge},
}
MIRRORED: Final[Mapping[str, Comparison]] = {
    **{"=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
}
Test: TypeAlias = Comparison | Literal["between", "in", "outside", "like"]
OPPOSITE: Final[Mapping[Test, Test]] = {
    **{"=": "<>", "<>": "=", "<": ">=", "<=": ">", ">": "<=", ">=": "<", "outside": "in"}
}
Function: TypeAlias = Literal["+", "-", "*", "/", "%", "div", "^", "power", "casei", "accenti"]


@dataclass(frozen=True, slots=True)
class Constant:
    """A literal value. A timestamp is in UTC; a number is exact."""

    kind: Kind
    value: Decimal | str | bool | datetime


@dataclass(frozen=True, slots=True)
class Metadata:
    """The values of a metadata key that can be compared as `kind`, without its other values."""

    name: str
    key: int | None
    """Its integer in the dictionary; None: no inference has it yet."""
    kind: Kind
    many: bool
    """Whether one inference may have several values."""


@dataclass(frozen=True, slots=True)
class Property:
    """A property of the inference itself, by its name in `properties.PROPERTIES`."""

    name: str
    kind: Kind


Item: TypeAlias = Literal["prediction", "truth"]
"""What an inference has several of, each with columns: predictions, or items of ground truth."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of an item, by its name in `properties.ITEM_COLUMNS`."""

    name: str
    kind: Kind
    of: Item = "prediction"


@dataclass(frozen=True, slots=True)
class Applied:
    """Arithmetic of numbers, as Postgres' numeric; a text without its case, or its accents.

    `/` and `power` have at least 16 significant digits; `div` truncates towards zero and `%` has
    the dividend's sign; `^` is exact, and takes a Constant whole exponent from 1 to 16. A division
    by zero, or a power that is not real or beyond 1e±299, has no result.
    """

    function: Function
    args: tuple["Value", ...]


@dataclass(frozen=True, slots=True)
class Counted:
    """The number of items that satisfy the condition (None: of all); NULL if unknown."""

    condition: "Predicate | None"
    of: Item = "prediction"


@dataclass(frozen=True, slots=True)
class Distance:
    """Metres from the inference's location to a point, along a sphere of 6,371,008.8 m radius."""

    longitude: Decimal
    latitude: Decimal


@dataclass(frozen=True, slots=True)
class PredicateValue:
    """A condition as a value: true, false, or no value if it is NULL."""

    of: "Predicate"


Value: TypeAlias = (
    Constant | Metadata | Property | Column | Applied | Counted | Distance | PredicateValue
)


def kind_of(value: Value) -> Kind:
    """Return the kind of a value."""
    match value:
        case Applied("casei" | "accenti"):
            return "string"
        case PredicateValue():
            return "bool"
        case Applied() | Counted() | Distance():
            return "number"
    return value.kind


@dataclass(frozen=True, slots=True)
class Fixed:
    """A predicate with the same value for every inference."""

    value: bool | None


@dataclass(frozen=True, slots=True)
class Compared:
    """The first value tested against the others; texts in code-point order.

    `between`: the lower bound and the upper one. `in`, `outside`: it equals one, or none, of these
    constants of one kind. `like`: `%` is any text, `_` one character, `\\` escapes the next one.
    """

    op: Test
    values: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Missing:
    """IS NULL: there is no value; for Metadata, no value of any kind, and JSON null is none."""

    of: Value


@dataclass(frozen=True, slots=True)
class Unknown:
    """IS NULL of a predicate: the predicate is neither true nor false."""

    of: "Predicate"


@dataclass(frozen=True, slots=True)
class Sent:
    """The metadata key was sent, whatever its value, JSON null too. Never NULL."""

    name: str
    key: int | None
    many: bool
    """Whether one inference may have several values."""


@dataclass(frozen=True, slots=True)
class Predicted:
    """Some item satisfies the condition (None: there is one); NULL if unknown: the response could
    not be read, or nobody has said what is true."""

    condition: "Predicate | None"
    of: Item = "prediction"


Point: TypeAlias = tuple[Decimal, Decimal]
"""Longitude, latitude, in degrees."""
Ring: TypeAlias = tuple[Point, ...]
"""Corners (longitude, latitude); the last one equals the first."""


@dataclass(frozen=True, slots=True)
class Area:
    """An outer ring and its holes. The corners of a box are a ring too.

    A point is inside if an odd number of the edges of all rings is east of it. A line is a ring
    that goes there and back: it has an edge, and no inside.
    """

    outer: Ring
    holes: tuple[Ring, ...] = ()


@dataclass(frozen=True, slots=True)
class Located:
    """A relation of the inference's location; NULL without a location.

    `intersects`: in an area or on its edge, or one of the points. `within`: in an area and not on
    its edge, or one of the points. A box over the antimeridian is two areas.
    """

    relation: Literal["intersects", "within"]
    areas: tuple[Area, ...] = ()
    points: tuple[Point, ...] = ()


@dataclass(frozen=True, slots=True)
class Not:
    of: "Predicate"


@dataclass(frozen=True, slots=True)
class And:
    parts: tuple["Predicate", ...]


@dataclass(frozen=True, slots=True)
class Or:
    parts: tuple["Predicate", ...]


Predicate: TypeAlias = (
    Fixed | Compared | Missing | Unknown | Sent | Predicted | Located | Not | And | Or
)


def leaves_of(value: Value) -> Iterator[Value]:
    """Yield the values that it is calculated from."""
    if isinstance(value, Applied):
        for arg in value.args:
            yield from leaves_of(arg)
    else:
        yield value


def is_many(value: Value | None) -> bool:
    """Check whether one inference may have several values of a name."""
    if isinstance(value, Metadata):
        return value.many
    return isinstance(value, Property) and value.name == "inference_ids"


def iterate_nodes(predicate: Any) -> Iterator[Any]:
    """Yield every predicate and value in it, without recursion."""
    waiting: list[Any] = [predicate]
    while waiting:
        node = waiting.pop()
        if isinstance(node, tuple):
            waiting.extend(node)
        elif is_dataclass(node):
            yield node
            waiting.extend(getattr(node, item.name) for item in fields(node))


MOST: Final = 5_000
"""The largest size of a filter, with the parts that are evaluated several times expanded."""

# In SQL these are a single word, besides the comparison that contains them.
_FREE: Final = (And, Or, Not, Constant, Metadata, Property, Column)


def comparisons_in(predicate: Predicate) -> int:
    """Count the comparisons, predicates and calculations, up to `MOST` + 1."""
    number = 0
    waiting: list[Any] = [predicate]
    while waiting and number <= MOST:
        node = waiting.pop()
        if isinstance(node, tuple):
            waiting.extend(node)
        elif is_dataclass(node) and not isinstance(node, Constant):
            number += not isinstance(node, _FREE)
            inside = [getattr(node, member.name) for member in fields(node)]
            # once for true, once for false, and each level costs the planner more
            waiting.extend(inside * 4 if isinstance(node, PredicateValue | Unknown) else inside)
    return min(number, MOST + 1)
