"""Converts a value of a typed filter to one side of a comparison, with the rows that it needs."""

import operator
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from functools import reduce
from typing import Any, Final

from sqlalchemy import (
    ColumnElement,
    Numeric,
    and_,
    case,
    cast,
    func,
    literal,
    literal_column,
    or_,
    select,
)
from sqlalchemy.dialects.postgresql import DOUBLE_PRECISION, TEXT, array
from sqlalchemy.sql import operators

from inference_store.index.tables import prediction
from inference_store.query import properties
from inference_store.query.filters import typed
from inference_store.query.filters.arithmetic import (
    LEAST_DOUBLE,
    MOST_DOUBLE,
    MOST_LOGARITHM,
    MOST_POWER,
)
from inference_store.query.filters.typed import Value
from inference_store.query.properties import PREDICTION_COLUMNS, PROPERTIES

from .combination import Combination
from .distances import compute_metres
from .names import Names
from .sides import Double, Label, MetadataText, Side, collate_text, fold_text


def build_side(value: Value, rows: Combination) -> Side:
    """Return the value in SQL, and add the rows that hold it."""
    return _SIDES[type(value)](value, rows)


def list_leaves(value: Value) -> Iterator[Value]:
    """Yield the values that it is calculated from."""
    match value:
        case typed.Calculated():
            yield from list_leaves(value.left)
            yield from list_leaves(value.right)
        case typed.Folded():
            yield from list_leaves(value.of)
        case _:
            yield value


def _constant(value: typed.Constant, rows: Combination) -> Side:
    bound = rows.names.constant(value)
    sql = collate_text(bound) if value.kind == "string" else bound
    return Side(value.kind, sql, rows.names, nullable=False)


def _metadata(value: typed.Metadata, rows: Combination) -> Side:
    row = rows.metadata(value).c
    if value.kind != "string":
        return Side(value.kind, row.value, rows.names, nullable=False)
    whole = func.coalesce(row.whole, row.value)
    return MetadataText("string", whole, rows.names, nullable=False, value=row.value)


def _property(value: typed.Property, rows: Combination) -> Side:
    if value.name == "inference_ids":
        return Side("string", rows.id().c.value, rows.names, nullable=False)
    return _stored(PROPERTIES[value.name], rows.own(), rows, "top_label")


def _column(value: typed.Column, rows: Combination) -> Side:
    return _stored(PREDICTION_COLUMNS[value.name], rows.prediction(), rows, "label")


def _stored(entry: properties.Property, row: Any, rows: Combination, label: str) -> Side:
    assert entry.sql is not None, f"{entry.name} is no single value"
    assert entry.kind != "location", f"{entry.name} is no value to compare"
    sql = entry.sql(row)
    if entry.name == label:
        return Label("string", sql, rows.names, number=row.c[label])
    if entry.stored == "double":
        return Double.of(sql, rows.names)
    if entry.stored == "whole":
        sql = cast(sql, Numeric)
    elif entry.name == "uid":
        sql = collate_text(sql)
    return Side(entry.kind, sql, rows.names)


def _calculated(value: typed.Calculated, rows: Combination) -> Side:
    left, right = (build_side(side, rows).sql for side in (value.left, value.right))
    if value.op == "power":
        return Side("number", double(left, right, rows.names), rows.names)
    if value.op == "^":
        assert isinstance(value.right, typed.Constant)
        whole = int(Decimal(str(value.right.value)))
        return Side("number", exact(left, whole), rows.names)
    return Side("number", _CALCULATIONS[value.op](left, right), rows.names)


def _divided(left: ColumnElement[Any], right: ColumnElement[Any]) -> ColumnElement[Any]:
    # SQLAlchemy gives a custom operator the lowest precedence: a sum on its left needs brackets.
    dividend = left.self_group(against=operators.mul)
    return dividend.op("/", return_type=Numeric())(func.nullif(right, 0))


_CALCULATIONS: Final[Mapping[str, Callable[[Any, Any], ColumnElement[Any]]]] = {
    "+": lambda left, right: left + right,
    "-": lambda left, right: left - right,
    "*": lambda left, right: left * right,
    "/": _divided,
    "%": lambda left, right: func.mod(left, func.nullif(right, 0), type_=Numeric()),
    "div": lambda left, right: func.div(left, func.nullif(right, 0), type_=Numeric()),
}


def _folded(value: typed.Folded, rows: Combination) -> Side:
    return Side("string", fold_text(value.how, build_side(value.of, rows).sql), rows.names)


def _counted(value: typed.Counted, rows: Combination) -> Side:
    own = rows.own()
    if value.condition is None:
        return Side("number", cast(own.c.prediction_count, Numeric), rows.names)
    row, scan_range = prediction.alias(), rows.scan_range
    assert rows.uid is not None
    matching = (
        select(func.count())
        .select_from(row)
        .where(scan_range.of(row), row.c.uid == rows.uid)
        .where(rows.names.condition_of(value.condition).holds(scan_range, row.c.uid))
        .correlate_except(row)
        .scalar_subquery()
    )
    has_predictions = own.c.prediction_count.is_not(None)
    return Side("number", case((has_predictions, cast(matching, Numeric))), rows.names)


def _truthful(value: typed.PredicateValue, rows: Combination) -> Side:
    uid = rows.own().c.uid if rows.uid is None else rows.uid
    true, false = (
        rows.names.condition_of(value.of, when=when).holds(rows.scan_range, uid)
        for when in (True, False)
    )
    return Side("bool", case((true, literal(True)), (false, literal(False))), rows.names)


def _distance(value: typed.Distance, rows: Combination) -> Side:
    return compute_metres(value, rows)


_SIDES: Final[Mapping[type[Any], Callable[[Any, Combination], Side]]] = {
    typed.Constant: _constant,
    typed.Metadata: _metadata,
    typed.Property: _property,
    typed.Column: _column,
    typed.Calculated: _calculated,
    typed.Folded: _folded,
    typed.Counted: _counted,
    typed.Distance: _distance,
    typed.PredicateValue: _truthful,
}


_ZERO: ColumnElement[Any] = literal_column("0::numeric", Numeric())
_ONE: ColumnElement[Any] = literal_column("1::numeric", Numeric())


def exact(base: ColumnElement[Any], exponent: int) -> ColumnElement[Any]:
    """Multiply an exact power out, because `power` rounds.

    The base is written, and computed, once.
    """
    if exponent == 0:
        return case((base.is_not(None), _ONE))
    if exponent == 1:
        return base
    once = func.unnest(array([base])).table_valued("x", name="once").render_derived()
    number: ColumnElement[Any] = cast(once.c.x, Numeric)
    product = reduce(operator.mul, [number] * exponent)
    return select(product).correlate_except(once).scalar_subquery()


def double(base: ColumnElement[Any], exponent: ColumnElement[Any], names: Names) -> Any:
    """Compute step by step as Python does, so that the doubles agree; both are computed once."""
    lists = array([base]), array([exponent])
    once = func.unnest(*lists).table_valued("x", "y", name="once").render_derived()
    x, y = cast(once.c.x, Numeric), cast(once.c.y, Numeric)
    power = case(
        (and_(y == _ZERO, x.is_not(None)), _ONE),
        (and_(x == _ZERO, y > _ZERO), _ZERO),
        (_is_real(x, y, names), cast(cast(_power(x, y, names), TEXT), Numeric)),
    )
    return select(power).correlate_except(once).scalar_subquery()


def _is_real(x: ColumnElement[Any], y: ColumnElement[Any], names: Names) -> ColumnElement[bool]:
    """Test that it is no root of a negative number, and not too large or small; else false or
    NULL."""
    logarithm = _double(y, MOST_POWER, names) * func.ln(func.abs(_double(x, MOST_DOUBLE, names)))
    small = func.abs(logarithm) <= names.bind_one(MOST_LOGARITHM, DOUBLE_PRECISION())
    return and_(or_(x > _ZERO, y == func.trunc(y)), small)


def _power(x: ColumnElement[Any], y: ColumnElement[Any], names: Names) -> ColumnElement[Any]:
    return func.power(
        _double(x, MOST_DOUBLE, names), _double(y, MOST_POWER, names), type_=DOUBLE_PRECISION()
    )


def _double(number: ColumnElement[Any], most: Decimal, names: Names) -> ColumnElement[Any]:
    """Return NULL for what is no double: the cast would raise."""
    fits = func.abs(number).between(names.number(LEAST_DOUBLE), names.number(most))
    return cast(case((fits, number)), DOUBLE_PRECISION)
