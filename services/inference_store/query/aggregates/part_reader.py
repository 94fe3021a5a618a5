"""Runs statements part by part, over the partitions of a model."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from sqlalchemy import Select, select, union_all
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql.selectable import CompoundSelect

from inference_store.inference.errors import TooManyGroups
from inference_store.query.deadline import Deadline, fetch
from inference_store.query.driving import (
    DrivingIndex,
    find_candidates,
    group_by_joins,
    settings_for,
)
from inference_store.query.matching import Query
from inference_store.query.scan_range import (
    GROUP,
    ScanRange,
    find_pieces_of,
    span_around,
    split_groups,
    split_unbroken,
)

from .rows import Dimension, InTime

# The rows of one part's result, at most: groups, or groups and values. All parts: twice as many.
MOST_ROWS: Final = 100_000


@dataclass(slots=True)
class Budget:
    """The rows that may still be held, counted after equal ones were merged."""

    most_of_a_part: int = field(default_factory=lambda: MOST_ROWS)
    remaining: int = field(init=False)

    def __post_init__(self) -> None:
        self.remaining = 2 * self.most_of_a_part

    def take(self) -> None:
        """Count one more row as held. Raises TooManyGroups."""
        if self.remaining == 0:
            raise TooManyGroups(
                f"The measures have more than {2 * self.most_of_a_part:,} groups, or different"
                " values in groups, together: ask for fewer at once, narrow the conditions, group"
                " by fewer names, or by a histogram."
            )
        self.remaining -= 1

    def part_too_large(self) -> TooManyGroups:
        """Return the error for a part that alone has too many rows."""
        return TooManyGroups(
            f"There are more than {self.most_of_a_part:,} groups, or different values in groups:"
            " narrow the conditions, group by fewer names, or by a histogram."
        )


# Aggregates read much and answer little: two more processes of Postgres may help with one.
WORKERS: Final = 2
# Up to this many spans of time are read one by one; with more, each row is tested for its span.
MOST_SPANS_READ: Final = 4 * GROUP
Part: TypeAlias = Select[Any] | CompoundSelect[Any]
Build: TypeAlias = Callable[[Query, DrivingIndex], Part]
StoredRows: TypeAlias = Callable[
    [AsyncConnection, Query, Sequence[ScanRange], Deadline],
    Awaitable[Mapping[ScanRange, Sequence[Any]]],
]
NOTHING: Final[Mapping[str, str]] = MappingProxyType({})


class PartReader:
    """Reads the parts of one request, a few at once."""

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
        """Yield the rows of all parts. Raises TooManyGroups.

        `as_one`: without conditions the partitions of a group are read as one. `settings`: settings
        of Postgres, if there are no conditions. `stored`: returns the rows of parts that need not
        be read.
        """
        if query.nothing or query.scan_range.empty:
            return
        parts = await find_pieces_of(self._connection, query.scan_range, newest_first=True)
        if stored is not None:
            stored_rows = await stored(self._connection, query, parts, self._deadline)
            parts = [part for part in parts if part not in stored_rows]
            for rows in stored_rows.values():
                for row in rows:
                    yield row
        if not query.conditions:
            for group in split_unbroken(parts):
                here = self._spans(span_around(group)) if as_one else group
                statements = [
                    partial(build, query, DrivingIndex(scan_range)) for scan_range in here
                ]
                async for row in self._fetched(statements, what, settings, large=False):
                    yield row
            return
        for group in split_groups(parts, query.group):
            for there in group_by_joins(
                await find_candidates(self._connection, query, group, self._deadline)
            ):
                statements = [partial(build, query, leading) for leading in there]
                async for row in self._fetched(
                    statements, what, settings_for(there), large=query.large
                ):
                    yield row

    def _spans(self, scan_range: ScanRange) -> Sequence[ScanRange]:
        """Return the ranges to read at once, by several processes: the spans of time, if they are
        few, so that no row has to be tested for its span."""
        in_time = next(
            (dimension for dimension in self._dimensions if isinstance(dimension, InTime)), None
        )
        spans = [scan_range] if in_time is None else in_time.cut(scan_range)
        return spans if len(spans) <= MOST_SPANS_READ else [scan_range]

    async def _fetched(
        self,
        statements: Sequence[Callable[[], Part]],
        what: str,
        settings: Mapping[str, str],
        *,
        large: bool,
    ) -> AsyncIterator[Any]:
        """Yield the rows of several parts, read together, or one by one if they have many rows.

        A few groups may have a row in every part. Raises TooManyGroups if one part has too many.
        """
        if not statements:
            return
        most = self._budget.most_of_a_part
        rows = await fetch(
            self._connection,
            lambda: _together([part() for part in statements], most + 1),
            self._deadline,
            large=large,
            # each process would have hashes of its own, and their memory is meant for one
            workers=0 if "hash_mem_multiplier" in settings else WORKERS,
            what=what,
            settings=settings,
        )
        if len(rows) <= most:
            for row in rows:
                yield row
            return
        if len(statements) == 1:
            raise self._budget.part_too_large()
        del rows  # free them before the parts are read again
        for part in statements:
            async for row in self._fetched([part], what, settings, large=large):
                yield row


def _together(parts: Sequence[Part], most: int) -> Select[Any]:
    rows = (union_all(*parts) if len(parts) > 1 else parts[0]).subquery()
    return select(rows).limit(most)
