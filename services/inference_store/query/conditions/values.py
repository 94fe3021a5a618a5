"""Converts a value of a typed filter to one side of a comparison, with the rows that it needs."""

from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from typing import Any, Final

from sqlalchemy import ColumnElement, Numeric, case, cast, func, literal, select
from sqlalchemy.sql import operators

from inference_store.index.tables import prediction
from inference_store.query import properties
from inference_store.query.filters import typed
from inference_store.query.filters.typed import Value
from inference_store.query.properties import PREDICTION_COLUMNS, PROPERTIES

from . import powers
from .combination import Combination
from .distances import compute_metres
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
        return Side("number", powers.double(left, right, rows.names), rows.names)
    if value.op == "^":
        assert isinstance(value.right, typed.Constant)
        whole = int(Decimal(str(value.right.value)))
        return Side("number", powers.exact(left, whole), rows.names)
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
