"""Finds the exports that name something that would be erased, as far as time allows."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Protocol
from uuid import UUID

from sqlalchemy import ARRAY, ColumnElement, any_, literal, not_, select, true
from sqlalchemy import UUID as UUID_TYPE
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.erasure import holds
from inference_store.index.tables import inference
from inference_store.query.deadline import Deadline, OutOfTime, fetch
from inference_store.query.matching import Query, match_by_index
from inference_store.query.scan_range import ScanRange, cut_range, find_ranges

HasAny = Callable[[ScanRange, Sequence[UUID]], Awaitable[bool]]
"""Says whether any of some uids, which lie in a range, would be erased. Raises OutOfTime."""


class MemberLists(Protocol):
    """The lists of exports. `exports`: those of which a member was found."""

    exports: set[UUID]

    def walk(
        self, connection: AsyncConnection, model: int, lo: UUID, hi: UUID
    ) -> AsyncIterator[tuple[UUID, Sequence[UUID]]]:
        """Yield the lists of a model that overlap [lo, hi), of exports that are not found yet."""


async def add_exports(
    connection: AsyncConnection, lists: MemberLists, scan_range: ScanRange, has_any: HasAny
) -> None:
    """Add the exports that name something in the range that would be erased. Raises OutOfTime."""
    walk = lists.walk(connection, scan_range.model, scan_range.lo, scan_range.hi)
    async for export, uids in walk:
        clipped = scan_range.clip(uids[0], UUID(int=min(uids[-1].int + 1, scan_range.hi.int)))
        if not clipped.empty and await has_any(clipped, uids):
            lists.exports.add(export)


async def find_exports(
    connection: AsyncConnection, queries: Sequence[Query], lists: MemberLists, deadline: Deadline
) -> bool:
    """Add the exports that name something that matches and no hold protects; False: time ran
    out."""
    try:
        for query in queries:
            if not query.nothing and not query.scan_range.empty:
                await _add_of_query(connection, query, lists, deadline)
    except OutOfTime:
        return False
    return True


async def _add_of_query(
    connection: AsyncConnection, query: Query, lists: MemberLists, deadline: Deadline
) -> None:
    ranges = await find_ranges(connection, closed=query.closed)

    async def has_any(part: ScanRange, uids: Sequence[UUID]) -> bool:
        for piece in cut_range(part, ranges, newest_first=False):
            held = await holds.build_held_condition(
                connection, piece.model, lo=piece.lo, hi=piece.hi
            )
            matches = match_by_index(query, piece)[0].subquery()
            statement = select(true()).where(
                piece.of(inference),
                among_uids(inference.c.uid, uids),
                inference.c.uid.in_(select(matches.c.uid)),
                true() if held is None else not_(held),
            )
            if await fetch(connection, statement.limit(1), deadline, large=query.large):
                return True
        return False

    await add_exports(connection, lists, query.scan_range, has_any)


def among_uids(column: ColumnElement[UUID], uids: Sequence[UUID]) -> ColumnElement[bool]:
    """Return the condition that a column is one of the uids, as one parameter."""
    return column == any_(literal(list(uids), ARRAY(UUID_TYPE(as_uuid=True))))
