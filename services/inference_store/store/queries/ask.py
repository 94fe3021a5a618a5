"""A question as it was asked, made into a Query: names to integers, values to types."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from decimal import Decimal
from types import MappingProxyType
from typing import Final, Literal

from rapidfuzz import process
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.store import key_registry
from inference_store.store.errors import Fault, UnknownKey
from inference_store.store.filters.typed import (
    Among,
    And,
    Column,
    Compared,
    Comparison,
    Constant,
    Fixed,
    Holds,
    Not,
    Predicted,
    Property,
    Truth,
)
from inference_store.store.tables import label, model_label

from .conditions import (
    EVERYTHING,
    NOTHING,
    All,
    Condition,
    Received,
    condition_of,
    names_of,
)
from .matching import Query
from .resolve import Asked, truth_of
from .scope import Scope, has_marks, window

UnknownKeys = Literal["refuse", "empty"]
SCORES: Final[Mapping[str, Comparison]] = MappingProxyType(
    {"gt": ">", "gte": ">=", "lt": "<", "lte": "<=", "eq": "="}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked of one model; everything that is given must hold. Times are half-open."""

    metadata: Sequence[Asked] = ()
    since: datetime | None = None
    until: datetime | None = None
    inference_ids: Sequence[str] | None = None
    data_hashes: Sequence[str] | None = None
    ok: bool | None = None
    labels: Sequence[str] | None = None
    scores: Mapping[str, float] = field(default_factory=dict)
    predicted: bool = False
    filter: Truth | None = None
    """A filter whose names and types are checked."""
    newest_first: bool = True
    unknown_keys: UnknownKeys = "refuse"


@dataclass(frozen=True, slots=True)
class Answerable:
    """The query, and what the caller should know about it."""

    query: Query
    warnings: tuple[str, ...] = ()


async def prepare(connection: AsyncConnection, model: int, question: Question) -> Answerable:
    """The question with names resolved. Raises UnknownKey, ImpossibleComparison, Invalid."""
    truths = [*await _metadata(connection, model, question), *_properties(question)]
    warnings: list[str] = []
    if question.predicted:
        truths.append(_predicted(question))
        warnings = await _unknown_labels(connection, model, question.labels or ())
    if question.filter is not None:
        truths.append(question.filter)
    query = await query_of(connection, window(model, question.since, question.until), truths)
    return Answerable(replace(query, newest_first=question.newest_first), tuple(warnings))


async def query_of(connection: AsyncConnection, scope: Scope, truths: Sequence[Truth]) -> Query:
    """The query of what satisfies all of the truths; spans of time narrow where it looks."""
    whole = And(tuple(truths))
    found = condition_of(whole, await names_of(connection, whole))
    conditions: list[Condition] = []
    for part in found.parts if isinstance(found, All) else (found,):
        if isinstance(part, Received):
            scope = part.narrow(scope)
        elif part != EVERYTHING:
            conditions.append(part)
    marks = await has_marks(connection, scope.model)
    return Query(scope, tuple(conditions), marks=marks, nothing=found == NOTHING)


async def _metadata(connection: AsyncConnection, model: int, question: Question) -> Sequence[Truth]:
    """The typed conditions of metadata."""
    seen = await key_registry.find(connection, model, {each.key for each in question.metadata})
    truths: list[Truth] = []
    for asked in question.metadata:
        if asked.key in seen:
            truths.append(truth_of(asked, seen[asked.key]))
        elif question.unknown_keys == "refuse":
            near = await key_registry.nearest(connection, model, asked.key)
            raise _unknown(asked, near)
        else:
            # What no inference has is missing from every one.
            truths.append(Fixed(asked.operator.name == "missing"))
    return truths


def _properties(question: Question) -> Iterator[Truth]:
    if question.inference_ids is not None:
        yield Among(Property("inference_ids", "string"), _texts(question.inference_ids))
    if question.data_hashes is not None:
        yield Among(Property("data_hash", "string"), _texts(question.data_hashes))
    if question.ok is not None:
        ok = Holds(Property("ok", "bool"))
        yield ok if question.ok else Not(ok)


def _texts(texts: Sequence[str]) -> tuple[Constant, ...]:
    return tuple(Constant("string", text) for text in texts)


def _predicted(question: Question) -> Truth:
    label, score = Column("label", "string"), Column("score", "number")
    tests: list[Truth] = [
        Compared(SCORES[name], score, Constant("number", Decimal(repr(bound))))
        for name, bound in question.scores.items()
    ]
    if question.labels is not None:
        tests.append(Among(label, _texts(question.labels)))
    return Predicted(And(tuple(tests)) if tests else None)


def _unknown(asked: Asked, near: Sequence[str]) -> UnknownKey:
    nearest = f"The nearest are {', '.join(near)}." if near else "It has no keys at all."
    detail = f"The model has no metadata key {asked.key!r}. {nearest}"
    return UnknownKey(detail, faults=[Fault(f"{asked.path}.key", "unknown key", near)])


async def _unknown_labels(
    connection: AsyncConnection, model: int, names: Sequence[str]
) -> list[str]:
    """A warning for each label that the model never gave."""
    known = await _labels(connection, model, names) if names else ()
    return [await _unknown_label(connection, model, name) for name in names if name not in known]


async def _labels(connection: AsyncConnection, model: int, names: Sequence[str]) -> set[str]:
    query = (
        select(label.c.name)
        .join(model_label, model_label.c.label == label.c.label)
        .where(model_label.c.model == model, label.c.name.in_(sorted(set(names))))
    )
    return set((await connection.execute(query)).scalars())


async def _unknown_label(connection: AsyncConnection, model: int, name: str) -> str:
    query = (
        select(label.c.name)
        .join(model_label, model_label.c.label == label.c.label)
        .where(model_label.c.model == model)
        .limit(10_000)
    )
    names = sorted((await connection.execute(query)).scalars())
    near = [match for match, _, _ in process.extract(name, names, limit=3)]
    nearest = f" The nearest are {', '.join(near)}." if near else ""
    return f"No prediction of this model has the label {name!r}.{nearest}"
