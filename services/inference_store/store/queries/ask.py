"""A question as it was asked, made into a Query: names to integers, values to types."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from rapidfuzz import process
from sqlalchemy import Double, select
from sqlalchemy.dialects.postgresql import INTEGER, TEXT
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.store import key_registry
from inference_store.store.errors import Fault, UnknownKey
from inference_store.store.operators import OPERATORS
from inference_store.store.tables import label, model_label

from .condition import Condition, Hashed, Named, Predicted, Succeeded
from .matching import Query
from .operand import many, one
from .resolve import Asked, condition_of
from .scope import has_marks, window

UnknownKeys = Literal["refuse", "empty"]
SCORES = ("gt", "gte", "lt", "lte", "eq")


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
    newest_first: bool = True
    unknown_keys: UnknownKeys = "refuse"


@dataclass(frozen=True, slots=True)
class Answerable:
    """The query, and what the caller should know about it."""

    query: Query
    warnings: tuple[str, ...] = ()


async def prepare(connection: AsyncConnection, model: int, question: Question) -> Answerable:
    """The question with names resolved. Raises UnknownKey, ImpossibleComparison, Invalid."""
    conditions: list[Condition] = []
    nothing = await _add_metadata(connection, model, question, conditions)
    if question.inference_ids is not None:
        conditions.append(Named(many(question.inference_ids, TEXT())))
    if question.data_hashes is not None:
        conditions.append(Hashed(many(question.data_hashes, TEXT())))
    if question.ok is not None:
        conditions.append(Succeeded(question.ok))
    warnings = await _add_prediction(connection, model, question, conditions)
    query = Query(
        scope=window(model, question.since, question.until),
        conditions=tuple(conditions),
        newest_first=question.newest_first,
        marks=await has_marks(connection, model),
        nothing=nothing,
    )
    return Answerable(query, tuple(warnings))


async def _add_metadata(
    connection: AsyncConnection, model: int, question: Question, conditions: list[Condition]
) -> bool:
    """Add the typed conditions; True: a key is unknown, so that nothing can match."""
    seen = await key_registry.find(connection, model, {each.key for each in question.metadata})
    nothing = False
    for asked in question.metadata:
        if asked.key in seen:
            conditions.append(condition_of(asked, seen[asked.key]))
        elif question.unknown_keys == "refuse":
            near = await key_registry.nearest(connection, model, asked.key)
            raise _unknown(asked, near)
        else:
            # What no inference has is missing from every one.
            nothing = nothing or asked.operator.name != "missing"
    return nothing


def _unknown(asked: Asked, near: Sequence[str]) -> UnknownKey:
    nearest = f"The nearest are {', '.join(near)}." if near else "It has no keys at all."
    detail = f"The model has no metadata key {asked.key!r}. {nearest}"
    return UnknownKey(detail, faults=[Fault(f"{asked.path}.key", "unknown key", near)])


async def _add_prediction(
    connection: AsyncConnection, model: int, question: Question, conditions: list[Condition]
) -> list[str]:
    """Add the condition on predictions; warnings about labels that the model never gave."""
    if not question.predicted:
        return []
    numbers: Any = None
    warnings: list[str] = []
    if question.labels is not None:
        known = await _labels(connection, model, question.labels)
        warnings = [
            await _unknown_label(connection, model, name)
            for name in question.labels
            if name not in known
        ]
        numbers = many(sorted(known.values()), INTEGER())
    scores = tuple(
        (OPERATORS[name], one(score, Double())) for name, score in question.scores.items()
    )
    conditions.append(Predicted(numbers, scores))
    return warnings


async def _labels(connection: AsyncConnection, model: int, names: Sequence[str]) -> dict[str, int]:
    query = (
        select(label.c.name, label.c.label)
        .join(model_label, model_label.c.label == label.c.label)
        .where(model_label.c.model == model, label.c.name.in_(sorted(set(names))))
    )
    return {row[0]: row[1] for row in await connection.execute(query)}


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
