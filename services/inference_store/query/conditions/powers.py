"""Powers in SQL: exact ones multiplied out, and those that are doubles."""

import operator
from decimal import Decimal
from functools import reduce
from typing import Any

from sqlalchemy import ColumnElement, Numeric, and_, case, cast, func, literal_column, or_, select
from sqlalchemy.dialects.postgresql import DOUBLE_PRECISION, TEXT, array

from inference_store.query.filters.arithmetic import (
    LEAST_DOUBLE,
    MOST_DOUBLE,
    MOST_LOGARITHM,
    MOST_POWER,
)

from .names import Names

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
