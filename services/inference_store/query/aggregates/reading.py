"""Statements run part by part, over the partitions of a model."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from sqlalchemy import Select, select, union_all
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql.selectable import CompoundSelect

from inference_store.query.bounded import Deadline, fetch
from inference_store.query.driving import DrivingIndex, group_by_joins, settings_for
from inference_store.query.list_sizes import find_candidates
from inference_store.query.matching import Query
from inference_store.query.scan_range import (
    GROUP,
    ScanRange,
    find_pieces_of,
    span_around,
    split_groups,
    split_unbroken,
)

from .budget import Budget
from .rows import Dimension, InTime

# Aggregates read much and answer little: two more processes of Postgres may help with one.
WORKERS: Final = 2
# So many spans of time in a statement are read one by one; of more it is asked row by row in
# which it lies.
MOST_SPANS_READ: Final = 4 * GROUP
Part: TypeAlias = Select[Any] | CompoundSelect[Any]
Build: TypeAlias = Callable[[Query, DrivingIndex], Part]
StoredRows: TypeAlias = Callable[
    [AsyncConnection, Query, Sequence[ScanRange], Deadline],
    Awaitable[Mapping[ScanRange, Sequence[Any]]],
]
NOTHING: Final[Mapping[str, str]] = MappingProxyType({})


class Reading:
    """The parts of one request, few at once."""

    def __init__(
        self,
        connection: AsyncConnection,
        dimensions: Sequence[Dimension],
        deadline: Deadline,
        budget: Budget,
    ) -> None:
        self._connection = connection
        self._dimensions = dimensions
        self._deadline = deadline
        self._budget = budget

    async def rows(
        self,
        query: Query,
        build: Build,
        what: str,
        *,
        as_one: bool = True,
        settings: Mapping[str, str] = NOTHING,
        stored: StoredRows | None = None,
    ) -> AsyncIterator[Any]:
        """The rows of all parts. `as_one`: without conditions the partitions of a group are read
        as one. `settings`: of Postgres, where there are no conditions. `stored`: those of parts
        that are not read. Raises TooManyGroups."""
        if query.nothing or query.scan_range.empty:
            return
        parts = await find_pieces_of(self._connection, query.scan_range, newest_first=True)
        if stored is not None:
            known = await stored(self._connection, query, parts, self._deadline)
            parts = [part for part in parts if part not in known]
            for rows in known.values():
                for row in rows:
                    yield row
        if not query.conditions:
            for group in split_unbroken(parts):
                here = self._spans(span_around(group)) if as_one else group
                built = [partial(build, query, DrivingIndex(scan_range)) for scan_range in here]
                async for row in self._fetched(built, what, settings, large=False):
                    yield row
            return
        for group in split_groups(parts, query.group):
            for there in group_by_joins(
                await find_candidates(self._connection, query, group, self._deadline)
            ):
                built = [partial(build, query, leading) for leading in there]
                async for row in self._fetched(built, what, settings_for(there), large=query.large):
                    yield row

    def _spans(self, scan_range: ScanRange) -> Sequence[ScanRange]:
        """What is read at once, by several processes: the spans of time, where they are few, so
        that nobody asks row by row in which it lies."""
        in_time = next((each for each in self._dimensions if isinstance(each, InTime)), None)
        spans = [scan_range] if in_time is None else in_time.cut(scan_range)
        return spans if len(spans) <= MOST_SPANS_READ else [scan_range]

    async def _fetched(
        self,
        built: Sequence[Callable[[], Part]],
        what: str,
        settings: Mapping[str, str],
        *,
        large: bool,
    ) -> AsyncIterator[Any]:
        """The rows of several parts; where they are many, of one after the other: what is few
        groups may be a row in each part. Raises TooManyGroups where one part has too many."""
        if not built:
            return
        most = self._budget.most_of_a_part
        rows = await fetch(
            self._connection,
            lambda: _together([part() for part in built], most + 1),
            self._deadline,
            large=large,
            # each process would have the hashes of a join that are meant for one
            workers=0 if "hash_mem_multiplier" in settings else WORKERS,
            what=what,
            settings=settings,
        )
        if len(rows) <= most:
            for row in rows:
                yield row
            return
        if len(built) == 1:
            raise self._budget.part_too_large()
        del rows  # not held beside those that come now
        for part in built:
            async for row in self._fetched([part], what, settings, large=large):
                yield row


def _together(parts: Sequence[Part], most: int) -> Select[Any]:
    rows = (union_all(*parts) if len(parts) > 1 else parts[0]).subquery()
    return select(rows).limit(most)
