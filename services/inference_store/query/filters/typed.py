"""A filter with types: what the check makes of a tree, and what SQL and Python give a meaning.

Two kinds of thing. A *value* stands for the values, of one kind, that an inference has: none
(NULL), one, or several (`tags[]`). A *predicate* is true, false or NULL of an inference.

A predicate over values looks at every combination of their values: true if some combination
satisfies it, NULL if there is no combination at all, else false. A calculation without a result
(a division by zero) is no combination. `Not` negates the whole; `And` and `Or` are SQL's.

Inside `Predicted` and `Counted`, the same holds of one prediction; `Column` exists only there.
"""

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Literal, TypeAlias

Kind: TypeAlias = Literal["number", "string", "bool", "timestamp"]
Comparison: TypeAlias = Literal["=", "<>", "<", "<=", ">", ">="]
Calculation: TypeAlias = Literal["+", "-", "*", "/", "%", "div", "^", "power"]
Folding: TypeAlias = Literal["casei", "accenti"]


@dataclass(frozen=True, slots=True)
class Constant:
    """A value that was written. A timestamp is in UTC; a number is exact."""

    kind: Kind
    value: Decimal | str | bool | datetime


@dataclass(frozen=True, slots=True)
class Metadata:
    """The values of a metadata key that can be compared as `kind`; other ones are not there."""

    name: str
    key: int | None
    """Its integer in the dictionary; None: no inference has it yet."""
    kind: Kind
    many: bool
    """Whether one inference may have several."""


@dataclass(frozen=True, slots=True)
class Property:
    """A property of the inference itself, by its name in `properties.PROPERTIES`."""

    name: str
    kind: Kind


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a prediction, by its name in `properties.PREDICTION_COLUMNS`."""

    name: str
    kind: Kind


@dataclass(frozen=True, slots=True)
class Calculated:
    """Arithmetic of numbers, exact but for `power`.

    `/` has at least 16 significant digits, rounded half away from zero, as Postgres' numeric;
    `div` cuts towards zero and `%` has the dividend's sign; `^` takes a Constant whole exponent
    from 0 to 16. `power` takes any exponent and is the double that comes of two doubles. What is
    divided by zero, no real number, or too large or small for a double has no result.
    """

    op: Calculation
    left: "Value"
    right: "Value"


@dataclass(frozen=True, slots=True)
class Folded:
    """A text with its letters' case folded, or without its accents."""

    how: Folding
    of: "Value"


@dataclass(frozen=True, slots=True)
class Counted:
    """How many predictions satisfy the condition (None: all there are); NULL where unknown."""

    condition: "Predicate | None"


@dataclass(frozen=True, slots=True)
class Distance:
    """Metres from the inference's location to a point, along a sphere of 6,371,008.8 m radius."""

    longitude: Decimal
    latitude: Decimal


@dataclass(frozen=True, slots=True)
class PredicateValue:
    """A condition as a value: true, false, or none where it is NULL."""

    of: "Predicate"


Value: TypeAlias = (
    Constant
    | Metadata
    | Property
    | Column
    | Calculated
    | Folded
    | Counted
    | Distance
    | PredicateValue
)


def kind_of(value: Value) -> Kind:
    """The kind of a value."""
    match value:
        case Folded():
            return "string"
        case PredicateValue():
            return "bool"
        case Calculated() | Counted() | Distance():
            return "number"
    return value.kind


@dataclass(frozen=True, slots=True)
class Fixed:
    """Always this."""

    value: bool | None


@dataclass(frozen=True, slots=True)
class Compared:
    """Two values of one kind compared; texts in code-point order."""

    op: Comparison
    left: Value
    right: Value


@dataclass(frozen=True, slots=True)
class Between:
    """low <= of <= high."""

    of: Value
    low: Value
    high: Value


@dataclass(frozen=True, slots=True)
class Among:
    """Equal to one of these, which are of one kind."""

    of: Value
    items: tuple[Constant, ...]


@dataclass(frozen=True, slots=True)
class Like:
    """A text that matches: `%` any text, `_` one character, `\\` takes the next as it is."""

    of: Value
    pattern: str


@dataclass(frozen=True, slots=True)
class Missing:
    """IS NULL: no value at all. Of a Metadata: of no kind, and JSON null is none."""

    of: Value


@dataclass(frozen=True, slots=True)
class Unknown:
    """IS NULL of a predicate: it is neither true nor false."""

    of: "Predicate"


@dataclass(frozen=True, slots=True)
class Holds:
    """A predicate value that is true: a bare `ok`, a bare boolean key."""

    of: Value


@dataclass(frozen=True, slots=True)
class Sent:
    """The metadata key was sent, whatever its value, JSON null too. Never NULL."""

    name: str
    key: int | None


@dataclass(frozen=True, slots=True)
class Predicted:
    """Some prediction satisfies the condition (None: there is one); NULL where unknown."""

    condition: "Predicate | None"


Ring: TypeAlias = tuple[tuple[Decimal, Decimal], ...]
"""Corners (longitude, latitude); the last is the first again."""


@dataclass(frozen=True, slots=True)
class Area:
    """An outer ring and its holes. The corners of a box are a ring too.

    Inside is what an odd number of the edges of all rings together lies east of. A line is a ring
    that goes there and back: it has an edge, and no inside.
    """

    outer: Ring
    holes: tuple[Ring, ...] = ()


@dataclass(frozen=True, slots=True)
class Located:
    """Where the inference's location lies; NULL without one.

    `intersects`: in an area or on its edge, or one of the points. `within`: in an area and not on
    its edge, or one of the points. A box over the antimeridian is two areas.
    """

    relation: Literal["intersects", "within"]
    areas: tuple[Area, ...] = ()
    points: tuple[tuple[Decimal, Decimal], ...] = ()


@dataclass(frozen=True, slots=True)
class Array:
    """The set of a many-valued name's values of one kind against a set of constants.

    NULL where it has no value of that kind. Order and repetition do not count: none is stored.
    A Property is `inference_ids`.
    """

    relation: Literal["equals", "contains", "containedby", "overlaps"]
    of: Metadata | Property
    items: tuple[Constant, ...]


Element: TypeAlias = tuple[Value, ...]
"""What one name, or one thing in an array, has: its values, by kind."""


@dataclass(frozen=True, slots=True)
class Sets:
    """Two sets, each of all that its elements have. NULL where an element has nothing.

    A value is equal to one of its own kind. A text that spells a number is that number too, as
    in metadata, if it is an ordinary one (`arithmetic.spelt`).
    """

    relation: Literal["equals", "contains", "containedby", "overlaps"]
    one: tuple[Element, ...]
    other: tuple[Element, ...]


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
    Fixed
    | Compared
    | Between
    | Among
    | Like
    | Missing
    | Unknown
    | Holds
    | Sent
    | Predicted
    | Located
    | Array
    | Sets
    | Not
    | And
    | Or
)
