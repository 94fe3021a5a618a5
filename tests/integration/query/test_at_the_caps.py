"""The largest filters that are accepted: planned in bounded time, with the right answer."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.index.tables import metadata_key
from inference_store.query.deadline import Deadline, range_of_time
from inference_store.query.filters.typed import (
    And,
    Area,
    Calculated,
    Column,
    Compared,
    Constant,
    Folded,
    Like,
    Located,
    Metadata,
    Not,
    Or,
    Predicate,
    PredicateValue,
    Predicted,
    Property,
    Sets,
    Unknown,
    Value,
)
from inference_store.query.preparation import build_query
from inference_store.query.search import count, find_by_time
from tests.unit.query.filters.oracle import evaluate

from .conftest import Filled
from .typed_rows import derive_facts

_DEPTH, _PARTS = 62, 600
# Replaced by the integers of the keys once the rows are stored.
_KEY = Metadata("n", -1, "number", False)
_TEXT = Metadata("s", -2, "string", False)


def _number(value: int) -> Constant:
    return Constant("number", Decimal(value))


def _comparisons() -> tuple[Predicate, ...]:
    """Return comparisons of equal and of different values, so that they are not one list."""
    return tuple(
        Compared("<" if n % 2 else ">", Calculated("+", _KEY, _number(n % 3)), _number(n))
        for n in range(_PARTS)
    )


def _deep() -> Predicate:
    predicate: Predicate = Compared(">", _KEY, _number(1))
    for n in range(_DEPTH):
        predicate = (And if n % 2 else Or)((predicate, Compared(">", _KEY, _number(n))))
    return predicate


def _negated() -> Predicate:
    predicate: Predicate = Compared(">", _KEY, _number(1))
    for n in range(8):
        predicate = Unknown(predicate) if n % 2 else Not(predicate)
    return predicate


def _calculated() -> Predicate:
    value: Value = _KEY
    for n in range(_DEPTH):
        value = Calculated("+", value, _number(n))
    return Compared(">", value, _number(3))


def _powers() -> Predicate:
    value: Value = Property("width", "number")
    for _ in range(8):
        value = Calculated("^", value, _number(2))
    return Compared(">", value, _number(3))


def _folded() -> Predicate:
    value: Value = _TEXT
    for _ in range(_DEPTH):
        value = Folded("casei", value)
    return Compared("<", value, Constant("string", "é"))


def _predicted(n: int) -> Predicate:
    label = Compared("=", Column("label", "string"), Constant("string", "car"))
    score = Compared("<", Column("score", "number"), Constant("number", Decimal(n) / 1000))
    return Predicted(And((label, score)))


def _many_corners() -> Predicate:
    corners = [(Decimal(n) / 10, Decimal(n * n % 80)) for n in range(1_500)]
    return Located("intersects", (Area((*corners, corners[0])),))


def _arrays(n: int) -> Predicate:
    tags = tuple(Metadata("tags[]", -3, kind, True) for kind in ("number", "string"))
    return Sets("equals", (tags,), ((_TEXT,), (Calculated("+", _KEY, _number(n)),)))


def _compared(n: int) -> Predicate:
    below, other = Compared("<", _KEY, _number(n)), Compared("<", _TEXT, Constant("string", "é"))
    return Compared("=", PredicateValue(below), PredicateValue(other))


FILTERS: dict[str, Predicate] = {
    "one of many": Or(_comparisons()),
    "all of many": And(_comparisons()),
    "not all of many": Not(And(_comparisons())),
    "a long list": Or(tuple(Compared("=", _KEY, _number(n)) for n in range(1_000))),
    "patterns": Or(tuple(Like(_TEXT, f"%{n}%") for n in range(300))),
    "predictions": Or(tuple(_predicted(n) for n in range(300))),
    "arrays": Or(tuple(_arrays(n) for n in range(100))),
    "conditions compared": And(tuple(_compared(n) for n in range(100))),
    "deep": _deep(),
    "unknown of unknown": _negated(),
    "deep arithmetic": _calculated(),
    "powers of powers": _powers(),
    "folded again and again": _folded(),
    "a polygon of many corners": _many_corners(),
}


def _replace_keys(node: Any, keys: Mapping[str, int]) -> Any:
    if isinstance(node, tuple):
        return tuple(_replace_keys(part, keys) for part in node)
    if isinstance(node, Metadata):
        return replace(node, key=keys[node.name])
    if not is_dataclass(node) or isinstance(node, type):
        return node
    return replace(
        node, **{f.name: _replace_keys(getattr(node, f.name), keys) for f in fields(node)}
    )


@pytest.mark.long
async def test_the_largest_filters(anything_engine: AsyncEngine, anything: Filled) -> None:
    model = anything.models["model-0"]
    facts = {entry.uid: derive_facts(entry) for entry in anything.inferences["model-0"]}
    deadline = Deadline.after(600)
    async with anything_engine.connect() as connection:
        rows = await connection.execute(select(metadata_key.c.name, metadata_key.c.key))
        keys = {row.name: row.key for row in rows}
        for name, unkeyed in FILTERS.items():
            predicate = _replace_keys(unkeyed, keys)
            expected = {uid for uid, of in facts.items() if evaluate(predicate, of)}
            query = await build_query(connection, range_of_time(model, None, None), [predicate])
            page = await find_by_time(connection, query, limit=100, deadline=deadline)
            assert set(page.uids) == expected, name
            assert await count(connection, query, deadline=deadline) == len(expected), name
