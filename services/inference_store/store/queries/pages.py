"""A page of a question, in any order, of one model or of several; and the cursor of the next."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.store.events.uid import received_at_of

from . import cursor as cursors
from . import page, place
from .across import find_across
from .bounded import Deadline
from .explain import say_form
from .hit import Hit
from .matching import Query
from .place import Place
from .progress import Progress
from .sort import Sort
from .sorted_page import OnlyWithValue, find_sorted


@dataclass(frozen=True, slots=True)
class Page:
    """What was found, and where to go on. `searched_back_to`: time ran out there."""

    hits: Sequence[Hit]
    next: str | None = None
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
) -> Page:
    """A page of one question, asked of each query's model. Raises OutOfTime, InvalidCursor.

    `fingerprint`: of the question; a cursor of another one is refused. The deadline's soft end
    holds in order of time, where a page may say how far back it has searched.
    """
    if sort.order is None:
        found = await _by_time(connection, queries, fingerprint, cursor, limit + 1, deadline)
    else:
        after = None
        if cursor is not None:
            after = place.decode(fingerprint, cursor, sort.order.kind, sort.order.type)
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
            return Page(some.hits, cursor_after(sort, fingerprint, some.hits[-1]))
        found = Page(hits)
    if len(found.hits) <= limit:
        return found
    return Page(found.hits[:limit], cursor_after(sort, fingerprint, found.hits[limit - 1]))


def to_narrow(sort: Sort) -> str:
    """What to do about a query that took too long."""
    if sort.order is None:
        return "The query took too long: narrow received_at, or add a condition that fewer match."
    return (
        "Sorting took too long: narrow received_at, add a condition that fewer match, or sort by"
        " received_at, which answers what it has found when time is over."
    )


def cursor_after(sort: Sort, fingerprint: bytes, hit: Hit) -> str:
    """What goes on after a hit."""
    if sort.order is None:
        return cursors.encode(fingerprint, hit.uid)
    return place.encode(fingerprint, Place(sort.order.kind, hit.uid, hit.value))


async def _by_time(  # noqa: PLR0917
    connection: AsyncConnection,
    queries: Sequence[Query],
    fingerprint: bytes,
    cursor: str | None,
    limit: int,
    deadline: Deadline,
) -> Page:
    if cursor is not None:
        after = cursors.decode(fingerprint, cursor)
        queries = [query.after(after) for query in queries]
    say_form("time: inferences in order of time")
    far: Progress
    goes_on = cursor is not None
    if len(queries) == 1:
        far = alone = await page.find(
            connection, queries[0], limit=limit, deadline=deadline, goes_on=goes_on
        )
        hits = [Hit(queries[0].scope.model, uid) for uid in alone.uids]
    else:
        far = found = await find_across(
            connection, queries, limit=limit, deadline=deadline, goes_on=goes_on
        )
        hits = found.hits
    if far.out_of_time and far.searched is not None and len(hits) < limit:
        following = cursors.encode(fingerprint, far.searched)
        return Page(hits, following, received_at_of(far.searched))
    return Page(hits)
