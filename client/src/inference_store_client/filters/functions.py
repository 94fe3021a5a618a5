"""Functions of the filter language."""

from collections.abc import Mapping
from datetime import timedelta

from .expression import Condition, Expression, Value
from .geometries import Geometry
from .names import predicted
from .nodes import Tree, format_duration, make_operation


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
