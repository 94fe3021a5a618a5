"""Turns a request into a Query: names become integers, values get types."""

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
    combine_all,
    compile_certain,
    compile_condition,
    read_names,
)
from .extent import Extent
from .matching import Query
from .predicates import check_request
from .query_request import QueryRequest, UnknownKeys
from .scan_range import ScanRange, has_marks, range_of_time


@dataclass(frozen=True, slots=True)
class PreparedQuery:
    """The query, and the warnings for the caller."""

    query: Query
    warnings: tuple[str, ...] = ()


async def prepare(
    connection: AsyncConnection, model: Models, request: QueryRequest, extent: Extent | None = None
) -> PreparedQuery:
    """Resolve the names of a request. Raises UnknownKey, ImpossibleComparison, Invalid, NotKept.

    With several models (`build_queries` then returns a query for each) a name is known if any of
    them has it. `extent`: of the one model, if it is known.
    """
    checked = await check_request(connection, model, request)
    first = model if isinstance(model, int) else next(iter(model), 0)
    scan_range = range_of_time(first, request.since, request.until)
    query = await build_query(connection, scan_range, checked.predicates, extent=extent)
    return PreparedQuery(replace(query, newest_first=request.newest_first), checked.warnings)


async def build_query(
    connection: AsyncConnection,
    scan_range: ScanRange,
    predicates: Sequence[Predicate],
    *,
    certain: bool = False,
    extent: Extent | None = None,
) -> Query:
    """Return the query that matches all of the predicates; time conditions narrow its range.

    `certain`: only certain matches. `extent`: of the model, if it is known.
    """
    whole = And(tuple(predicates))
    names = await read_names(connection, whole)
    condition = compile_certain(whole, names) if certain else compile_condition(whole, names)
    return await _make_query(connection, scan_range, whole, condition, extent)


async def find_doubtful(
    connection: AsyncConnection, scan_range: ScanRange, predicates: Sequence[Predicate]
) -> Query | None:
    """Return the query of matches that are not certain; None if there can be none."""
    whole = And(tuple(predicates))
    names = await read_names(connection, whole)
    possible, certain = compile_condition(whole, names), compile_certain(whole, names)
    if possible == certain:
        return None
    return await _make_query(
        connection, scan_range, whole, combine_all([possible, Neither((certain,))])
    )


async def _make_query(
    connection: AsyncConnection,
    scan_range: ScanRange,
    whole: Predicate,
    condition: Condition,
    extent: Extent | None = None,
) -> Query:
    conditions: list[Condition] = []
    for part in condition.parts if isinstance(condition, All) else (condition,):
        if isinstance(part, Received):
            scan_range = part.narrow(scan_range)
        elif part != EVERYTHING:
            conditions.append(part)
    return Query(
        scan_range,
        tuple(conditions),
        marks=extent.has_marks if extent else await has_marks(connection, scan_range.model),
        nothing=condition == NOTHING,
        size=comparisons_in(whole),
        spans=extent.spans if extent else None,
    )


__all__ = [
    "PreparedQuery",
    "QueryRequest",
    "UnknownKeys",
    "build_query",
    "find_doubtful",
    "prepare",
]
