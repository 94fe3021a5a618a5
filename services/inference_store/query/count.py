"""Counts matches, partition by partition; in some partitions the count is stored."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from sqlalchemy import Select, func, select, union_all
from sqlalchemy.ext.asyncio import AsyncConnection

from .anti_join import JOINING, WORKERS, count_without, find_anti_joins
from .conditions import OfKey
from .deadline import Deadline, OutOfTime, fetch
from .driving import DrivingIndex, build_matches, group_by_joins, settings_for
from .list_sizes import find_candidates
from .matching import Query, find_pieces
from .scan_range import split_groups
from .stored_counts import read_numbers


async def count(connection: AsyncConnection, query: Query, *, deadline: Deadline) -> int:
    """Count the matches. Raises OutOfTime."""
    if query.nothing or query.scan_range.empty:
        return 0
    parts = await find_pieces(connection, query, newest_first=True)
    stored_numbers = await read_numbers(connection, [query], parts, deadline)
    matches = sum(stored_numbers.values())
    for group in split_groups([part for part in parts if part not in stored_numbers], query.group):
        for pieces in group_by_joins(await find_candidates(connection, query, group, deadline)):
            matches += await _sum_pieces(connection, query, pieces, deadline)
    return matches


async def _sum_pieces(
    connection: AsyncConnection, query: Query, pieces: Sequence[DrivingIndex], deadline: Deadline
) -> int:
    settings, workers = settings_for(pieces), WORKERS
    if any(piece.joins for piece in pieces):
        workers = 0  # each process would have hashes of its own
    elif _find_subtracted(query):
        settings = JOINING
    rows = await fetch(
        connection,
        partial(_select_sum, query, pieces),
        deadline,
        large=query.large,
        workers=workers,
        settings=settings,
    )
    # never below zero: in a span that is being dropped the parents are deleted first
    return max(0, int(rows[0][0]))


def _select_sum(query: Query, pieces: Sequence[DrivingIndex]) -> Select[Any]:
    counted = union_all(*(part for piece in pieces for part in _select_counts(query, piece)))
    return select(func.sum(counted.subquery().c.matches))


def _find_subtracted(query: Query) -> OfKey | None:
    """Return the one condition, if inferences that do not satisfy it are counted and subtracted."""
    keys = find_anti_joins(query)
    return keys[0] if len(query.conditions) == len(keys) == 1 else None


def _select_counts(query: Query, piece: DrivingIndex) -> list[Select[Any]]:
    """Select numbers whose sum is how many match."""
    key = _find_subtracted(query)
    if key is not None:
        return count_without(query, key, piece.scan_range)
    matches, unique = build_matches(query, piece)
    rows = (matches if unique else matches.distinct()).subquery()
    return [select(func.count().label("matches")).select_from(rows)]


__all__ = ["OutOfTime", "count"]
