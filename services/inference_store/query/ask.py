"""A question as it was asked, made into a Query: names to integers, values to types."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index.key_registry import Models
from inference_store.query.filters.size import comparisons_in
from inference_store.query.filters.typed import And, Predicate

from .conditions import (
    EVERYTHING,
    NOTHING,
    All,
    Condition,
    Neither,
    Received,
    all_of,
    certainly,
    condition_of,
    names_of,
)
from .extent import Extent
from .matching import Query
from .predicates import check_request
from .question import Question, UnknownKeys
from .scope import Scope, has_marks, window


@dataclass(frozen=True, slots=True)
class Answerable:
    """The query, and what the caller should know about it."""

    query: Query
    warnings: tuple[str, ...] = ()


async def prepare(
    connection: AsyncConnection, model: Models, question: Question, extent: Extent | None = None
) -> Answerable:
    """The question with names resolved. Raises UnknownKey, ImpossibleComparison, Invalid, NotKept.

    Of several models (`across.spread` asks each of them) a name is one that any of them has.
    `extent`: of the one model, where it is known.
    """
    understood = await check_request(connection, model, question)
    first = model if isinstance(model, int) else next(iter(model), 0)
    scope = window(first, question.since, question.until)
    query = await query_of(connection, scope, understood.predicates, extent=extent)
    return Answerable(replace(query, newest_first=question.newest_first), understood.warnings)


async def query_of(
    connection: AsyncConnection,
    scope: Scope,
    predicates: Sequence[Predicate],
    *,
    certain: bool = False,
    extent: Extent | None = None,
) -> Query:
    """Return the query that matches all of the predicates; time conditions narrow its range.

    `certain`: whatever the index may lack of it. `extent`: of the model, where it is known.
    """
    whole = And(tuple(predicates))
    names = await names_of(connection, whole)
    found = certainly(whole, names) if certain else condition_of(whole, names)
    return await _query(connection, scope, whole, found, extent)


async def doubted(
    connection: AsyncConnection, scope: Scope, predicates: Sequence[Predicate]
) -> Query | None:
    """The query of what satisfies them as the index has it, and may not; None: nothing is so."""
    whole = And(tuple(predicates))
    names = await names_of(connection, whole)
    found, sure = condition_of(whole, names), certainly(whole, names)
    if found == sure:
        return None
    return await _query(connection, scope, whole, all_of([found, Neither((sure,))]))


async def _query(
    connection: AsyncConnection,
    scope: Scope,
    whole: Predicate,
    found: Condition,
    extent: Extent | None = None,
) -> Query:
    conditions: list[Condition] = []
    for part in found.parts if isinstance(found, All) else (found,):
        if isinstance(part, Received):
            scope = part.narrow(scope)
        elif part != EVERYTHING:
            conditions.append(part)
    return Query(
        scope,
        tuple(conditions),
        marks=extent.has_marks if extent else await has_marks(connection, scope.model),
        nothing=found == NOTHING,
        size=comparisons_in(whole),
        spans=extent.spans if extent else None,
    )


__all__ = ["Answerable", "Question", "UnknownKeys", "doubted", "prepare", "query_of"]
