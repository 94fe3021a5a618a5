"""Lists the uids of the inferences that an erasure would remove, page by page, for records of
them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias
from uuid import UUID

from sqlalchemy import Select, not_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.erasure import holds
from inference_store.index.tables import inference
from inference_store.query.deadline import Deadline, OutOfTime, fetch
from inference_store.query.matching import Query, match_by_index
from inference_store.query.scan_range import ScanRange, find_pieces_of

ErasedUid: TypeAlias = tuple[int, UUID]
"""A model's integer, and the uid of one of its inferences."""
_START: Final[ErasedUid] = (0, UUID(int=0))


@dataclass(frozen=True, slots=True)
class UidPage:
    """Uids that would go, in order of model and time; None: they were not requested.

    `partial`: time ran out before the page was full, and there may be more after `last`, the
    position that was reached.
    """

    uids: Sequence[ErasedUid] | None
    last: ErasedUid | None
    partial: bool = False


async def list_uids(
    connection: AsyncConnection,
    queries: Sequence[Query],
    *,
    after: ErasedUid | None,
    limit: int,
    deadline: Deadline,
) -> UidPage:
    """Return the next uids that no hold protects; `queries`: one for each model, in order of the
    models."""
    uids: list[ErasedUid] = []
    last = after or _START
    for query in queries:
        if query.nothing or query.scan_range.empty or query.scan_range.model < last[0]:
            continue
        for part in await _list_pieces(connection, query, last):
            statement = await _select_uids(connection, query, part, limit + 1 - len(uids))
            try:
                rows = await fetch(connection, statement, deadline, large=query.large)
            except OutOfTime:
                return UidPage(uids, last, partial=True)
            uids += [(part.model, row.uid) for row in rows]
            if len(uids) > limit:
                return UidPage(uids[:limit], uids[limit - 1])
            last = part.model, UUID(int=part.hi.int - 1)
    return UidPage(uids, None)


async def _list_pieces(
    connection: AsyncConnection, query: Query, last: ErasedUid
) -> list[ScanRange]:
    """Return the partitions of a model, the oldest first, after the position that was reached."""
    scan_range = query.scan_range
    if last[0] == scan_range.model:
        scan_range = scan_range.clip(
            UUID(int=min(last[1].int + 1, scan_range.hi.int)), scan_range.hi
        )
    return await find_pieces_of(connection, scan_range, newest_first=False, closed=query.closed)


async def _select_uids(
    connection: AsyncConnection, query: Query, part: ScanRange, limit: int
) -> Select[Any]:
    held = await holds.build_held_condition(connection, part.model, lo=part.lo, hi=part.hi)
    matches = match_by_index(query, part)[0].subquery()
    here = inference.c
    matching = select(here.uid).where(part.of(inference), here.uid.in_(select(matches.c.uid)))
    if held is not None:
        matching = matching.where(not_(held))
    return matching.order_by(here.uid).limit(limit)
