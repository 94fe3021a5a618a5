"""A page of a query, in any order, of one model or of several; and the cursor of the next."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.inference.events.event import received_at_of

from . import cursor as cursors
from . import page, sorted_cursor
from .across_models import find_across
from .deadline import Deadline
from .explain import record_form
from .hit import Hit
from .matching import Query
from .progress import Progress
from .read import Inference, make_ahead
from .sort import Sort
from .sorted_cursor import Cursor
from .sorted_page import OnlyWithValue, find_sorted


@dataclass(frozen=True, slots=True)
class Page:
    """The hits of a page, and the cursor of the next one.

    `searched_back_to`: the time down to which it searched before time ran out.
    """

    hits: Sequence[Hit]
    next: str | None = None
    read: Mapping[UUID, Inference] = field(default_factory=dict)
    """The inferences that were read with the hits: all are of one model."""
    searched_back_to: datetime | None = None


async def find_page(
    connection: AsyncConnection,
    queries: Sequence[Query],
    sort: Sort,
    *,
    fingerprint: bytes,
    cursor: str | None,
    limit: int,
    deadline: Deadline,
    include: Collection[str] | None = None,
) -> Page:
    """Find a page of one request, by a query of each model. Raises OutOfTime, InvalidCursor.

    `include`: the parts to show with the hits, if they may be read together. `fingerprint`: of the
    request; a cursor of another one is refused. The deadline's soft end applies in order of time,
    because such a page may say how far back it has searched.
    """
    if sort.order is None:
        ways = limit + 1, deadline, include
        result = await _find_by_time(connection, queries, fingerprint, cursor, *ways)
    else:
        after = None
        if cursor is not None:
            after = sorted_cursor.decode(fingerprint, cursor, sort.order.kind, sort.order.type)
        try:
            hits = await find_sorted(
                connection,
                queries,
                sort.order,
                limit=limit + 1,
                deadline=deadline.whole,
                after=after,
            )
        except OnlyWithValue as some:
            return Page(some.hits, make_cursor(sort, fingerprint, some.hits[-1]))
        result = Page(hits)
    if len(result.hits) <= limit:
        return result
    following = make_cursor(sort, fingerprint, result.hits[limit - 1])
    return replace(result, hits=result.hits[:limit], next=following)


def describe_narrowing(sort: Sort) -> str:
    """Say what to do about a query that took too long."""
    if sort.order is None:
        return "The query took too long: narrow received_at, or add a condition that fewer match."
    return (
        "Sorting took too long: narrow received_at, add a condition that fewer match, or sort by"
        " received_at, which answers what it has found when time is over."
    )


def make_cursor(sort: Sort, fingerprint: bytes, hit: Hit) -> str:
    """Return the cursor that continues after a hit."""
    if sort.order is None:
        return cursors.encode(fingerprint, hit.uid)
    return sorted_cursor.encode(fingerprint, Cursor(sort.order.kind, hit.uid, hit.value))


async def _find_by_time(  # noqa: PLR0917
    connection: AsyncConnection,
    queries: Sequence[Query],
    fingerprint: bytes,
    cursor: str | None,
    limit: int,
    deadline: Deadline,
    include: Collection[str] | None,
) -> Page:
    if cursor is not None:
        after = cursors.decode(fingerprint, cursor)
        queries = [query.after(after) for query in queries]
    record_form("time: inferences in order of time")
    far: Progress
    goes_on = cursor is not None
    read: Mapping[UUID, Inference] = {}
    if len(queries) == 1:
        ahead = None if include is None else await make_ahead(connection, include, limit)
        how: dict[str, Any] = {"limit": limit, "deadline": deadline, "goes_on": goes_on}
        far = alone = await page.find_page(connection, queries[0], **how, ahead=ahead)
        read = {} if ahead is None else ahead.inferences
        hits = [Hit(queries[0].scan_range.model, uid) for uid in alone.uids]
    else:
        far = search = await find_across(
            connection, queries, limit=limit, deadline=deadline, goes_on=goes_on
        )
        hits = search.hits
    if far.out_of_time and far.searched is not None and len(hits) < limit:
        following = cursors.encode(fingerprint, far.searched)
        return Page(hits, following, read, received_at_of(far.searched))
    return Page(hits, read=read)
