"""A question of one model or several, in an order by its name, followed page by page."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.query import cursor, sorted_cursor
from inference_store.query.across import build_queries
from inference_store.query.ask import QueryRequest, prepare
from inference_store.query.bounded import Deadline
from inference_store.query.pages import find_page
from inference_store.query.sort import resolve_sort

FINGERPRINT = cursor.fingerprint("the question")


async def pages(
    connection: AsyncConnection,
    models: Sequence[int],
    sort: str,
    question: QueryRequest,
    *,
    limit: int,
    seconds: float = 180,
) -> list[list[UUID]]:
    """Every page, by its cursor alone."""
    found: list[list[UUID]] = []
    after: str | None = None
    while True:
        kind = sorted_cursor.find_family(after)
        order = await resolve_sort(connection, models, sort, kind=kind)
        asked = await prepare(connection, models, question)
        query = asked.query if order.descending else asked.query.in_order()
        page = await find_page(
            connection,
            await build_queries(connection, query, models),
            order,
            fingerprint=FINGERPRINT,
            cursor=after,
            limit=limit,
            deadline=Deadline.after(seconds),
        )
        found.append([hit.uid for hit in page.hits])
        after = page.next
        if after is None:
            return found
        assert len(after) <= sorted_cursor.MOST_CHARACTERS


def in_order(values: Sequence[tuple[UUID, Any]], *, descending: bool) -> list[UUID]:
    """By (value, uid), those without a value last, both directions alike."""
    there = [(value, uid) for uid, value in values if value is not None]
    lacking = [uid for uid, value in values if value is None]
    by_value = [uid for _, uid in sorted(there, reverse=descending)]
    return by_value + sorted(lacking, reverse=descending)
