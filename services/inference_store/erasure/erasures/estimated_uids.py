"""The uids of the inferences that an erasure would take, page by page: for whoever notes them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias
from uuid import UUID

from sqlalchemy import Select, not_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.erasure import holds
from inference_store.index.tables import inference
from inference_store.query.bounded import Deadline, OutOfTime, fetch
from inference_store.query.matching import Query, match_by_index
from inference_store.query.scan_range import ScanRange, find_pieces_of

ErasedUid: TypeAlias = tuple[int, UUID]
"""A model's integer, and the uid of one of its inferences."""
_START: Final[ErasedUid] = (0, UUID(int=0))


@dataclass(frozen=True, slots=True)
class UidPage:
    """Uids that would go, in order of model and time; None: nobody asked. `partial`: time was over
    before the page was full, and there may be more behind `last`, the place that was reached."""

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
    """The next that no hold keeps; `queries`: of each model one, in order of the models."""
    found: list[ErasedUid] = []
    last = after or _START
    for query in queries:
        if query.nothing or query.scan_range.empty or query.scan_range.model < last[0]:
            continue
        for part in await _parts(connection, query, last):
            statement = await _select_uids(connection, query, part, limit + 1 - len(found))
            try:
                rows = await fetch(connection, statement, deadline, large=query.large)
            except OutOfTime:
                return UidPage(found, last, partial=True)
            found += [(part.model, row.uid) for row in rows]
            if len(found) > limit:
                return UidPage(found[:limit], found[limit - 1])
            last = part.model, UUID(int=part.hi.int - 1)
    return UidPage(found, None)


async def _parts(connection: AsyncConnection, query: Query, last: ErasedUid) -> list[ScanRange]:
    """The partitions of a model, the oldest first, behind the place that was reached."""
    scan_range = query.scan_range
    if last[0] == scan_range.model:
        scan_range = scan_range.clip(
            UUID(int=min(last[1].int + 1, scan_range.hi.int)), scan_range.hi
        )
    return await find_pieces_of(connection, scan_range, newest_first=False, closed=query.closed)


async def _select_uids(
    connection: AsyncConnection, query: Query, part: ScanRange, limit: int
) -> Select[Any]:
    held = await holds.predicate(connection, part.model, lo=part.lo, hi=part.hi)
    matches = match_by_index(query, part)[0].subquery()
    here = inference.c
    found = select(here.uid).where(part.of(inference), here.uid.in_(select(matches.c.uid)))
    if held is not None:
        found = found.where(not_(held))
    return found.order_by(here.uid).limit(limit)
