"""The SQL that finds inferences: by a scan, and by driving indexes."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import ColumnElement, Select, case, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index.tables import inference
from inference_store.query.deadline import (
    GROUP,
    HIGHEST,
    LOWEST,
    Range,
    ScanRange,
    cut_range,
    find_pieces_of,
    reads_apart,
    test_unmarked,
)

from .conditions.condition import Condition, match_all

# Inside of `read_each` one process reads; of so few models each may be a large one.
_FEW_MODELS = 8
# Comparisons of one statement, if it can be split: each costs a millisecond before it runs.
MOST_COMPARISONS = 100
_LARGE = 50


class Hit(NamedTuple):
    """One inference. `value`: None in order of time, and if it has no value to be sorted by."""

    model: int
    uid: UUID
    value: Any = None


@dataclass(frozen=True, slots=True)
class Query:
    """Conditions that must all hold, in a range, of the inferences of one model or of several."""

    scan_range: ScanRange
    conditions: tuple[Condition, ...] = ()
    newest_first: bool = True
    marks: bool = False
    """Whether any inference of the models is being erased."""
    closed: bool = False
    """Whether it searches spans that are being dropped, too."""
    nothing: bool = False
    """Whether nothing can match: a key is unknown, and the caller wants an empty answer."""
    size: int = 0
    """The number of comparisons in the conditions."""
    spans: Sequence[Range] | None = field(default=None, compare=False)
    """The open spans, the newest first, if they are known already."""
    wanted: Condition | None = field(default=None, compare=False)
    """What a prediction of a match satisfies that the filter asks for; None: it asks for none."""

    @property
    def is_driven(self) -> bool:
        """Check whether an index can drive it."""
        return any(condition.scans for condition in self.conditions)

    @property
    def large(self) -> bool:
        """Check whether its statements are built beside the event loop, and not cached."""
        return self.size > _LARGE

    @property
    def group(self) -> int:
        """The number of partitions that one statement searches."""
        return min(GROUP, max(1, MOST_COMPARISONS // max(1, self.size)))

    @property
    def form(self) -> str:
        """The kinds of its conditions, `everything` without any: one of a short list."""
        return "+".join(sorted({condition.kind for condition in self.conditions})) or "everything"

    def in_order(self) -> "Query":
        """Return the same query, the oldest first."""
        return replace(self, newest_first=False)

    def after(self, uid: UUID) -> "Query":
        """Return the same query, after `uid`."""
        if self.newest_first:
            return replace(self, scan_range=self.scan_range.clip(LOWEST, uid))
        return replace(
            self, scan_range=self.scan_range.clip(UUID(int=min(uid.int + 1, HIGHEST.int)), HIGHEST)
        )


async def find_pieces(connection: AsyncConnection, query: Query) -> list[ScanRange]:
    """Cut the range into the partitions' spans, as `find_pieces_of` does; none if nothing can
    match."""
    if query.nothing or query.scan_range.empty:
        return []
    if query.spans is None or query.closed:
        how = {"newest_first": query.newest_first, "closed": query.closed}
        return await find_pieces_of(connection, query.scan_range, **how)
    return cut_range(query.scan_range, query.spans, newest_first=query.newest_first)


async def split_models(connection: AsyncConnection, query: Query) -> list[Query]:
    """Return the query as statements without an order read it: as it is; that of each model if they
    are few, which Postgres may read by several processes, or on Citus."""
    scan_range = query.scan_range
    if not scan_range.is_of_several:
        return [query]
    is_few = len(scan_range.models) <= _FEW_MODELS
    if not is_few and not await reads_apart(connection, scan_range):
        return [query]
    return [replace(query, scan_range=one) for one in query.scan_range.split()]


def match_by_scan(query: Query, scan_range: ScanRange) -> Select[Any]:
    """Select from a short range, and test every inference."""
    return select(inference.c.uid).where(
        scan_range.of(inference), *test_each(query, query.conditions, scan_range, inference.c.uid)
    )


def match_by_index(query: Query, scan_range: ScanRange) -> Select[Any]:
    """Select the matches by index, each once."""
    matches, unique = match_all(query.conditions, scan_range, unmarked=query.marks)
    return matches if unique else matches.distinct()


def test_each(
    query: Query, conditions: Sequence[Condition], scan_range: ScanRange, uid: ColumnElement[Any]
) -> list[ColumnElement[bool]]:
    """Return tests for a few inferences, one by one.

    The planner cannot turn them into joins, whose other side would be read as a whole.
    """
    tests: list[ColumnElement[bool]] = [
        case((condition.holds(scan_range, uid), True), else_=False).is_(True)
        for condition in conditions
    ]
    return [*tests, test_unmarked(scan_range, uid)] if query.marks else tests


def count_matches(matches: Select[Any]) -> Select[Any]:
    """Select the number of matches."""
    return select(func.count().label("matches")).select_from(matches.subquery())
