"""The right side of a comparison, bound once and used in every partition's part of a statement."""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Boolean, ColumnElement, DateTime, Numeric, and_, bindparam, func
from sqlalchemy.dialects.postgresql import ARRAY, TEXT
from sqlalchemy.sql.type_api import TypeEngine

from inference_store.store.metadata.metadata_types import Family
from inference_store.store.operators import Operator, Takes

TYPES: dict[Family, TypeEngine[Any]] = {
    "number": Numeric(),
    "string": TEXT(),
    "bool": Boolean(),
    "timestamp": DateTime(timezone=True),
}


@dataclass(frozen=True, slots=True)
class Bound:
    """An operand: its family, its Python value, and that value as SQL parameters."""

    family: Family
    value: Any
    sql: Any


def one(value: Any, kind: TypeEngine[Any]) -> Any:
    """One value as a parameter."""
    return bindparam(None, value, type_=kind, unique=True)


def many(values: Any, kind: TypeEngine[Any]) -> Any:
    """A list as one parameter, so that its length costs none of the protocol's 32,767."""
    return bindparam(None, list(values), type_=ARRAY(kind), unique=True)


def bind(family: Family, takes: Takes, value: Any) -> Bound:
    """A typed value, or values, ready for SQL."""
    kind = TYPES[family]
    match takes:
        case Takes.LIST:
            return Bound(family, value, many(value, kind))
        case Takes.PAIR:
            return Bound(family, value, tuple(one(each, kind) for each in value))
        case _:
            return Bound(family, value, one(value, kind))


def compare(operator: Operator, bound: Bound, table: Any) -> ColumnElement[bool]:
    """The operator over a side table's value; of text always the whole text."""
    if bound.family != "string":
        return operator.row(table.c.value, bound.sql)
    whole = operator.row(func.coalesce(table.c.whole, table.c.value), bound.sql)
    return and_(whole, *_candidates(operator, bound, table.c.value))


def _candidates(operator: Operator, bound: Bound, indexed: Any) -> list[ColumnElement[bool]]:
    """What lets the index find the candidates: no match lies outside."""
    bounds = operator.bounds(bound.value)
    found: list[ColumnElement[bool]] = []
    if bounds.equal is not None:
        found.append(indexed == many(bounds.equal, TEXT()).any_())
    if bounds.low is not None:
        found.append(indexed >= one(bounds.low, TEXT()))
    if bounds.high is not None:
        found.append(indexed < one(bounds.high, TEXT()))
    return found
