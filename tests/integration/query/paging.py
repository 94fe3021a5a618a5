"""Queries of one model or several, sorted by a name and followed page by page."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.query import cursor, sorted_cursor
from inference_store.query.across_models import build_queries
from inference_store.query.deadline import Deadline
from inference_store.query.pages import find_page
from inference_store.query.preparation import QueryRequest, prepare
from inference_store.query.sort import resolve_sort

FINGERPRINT = cursor.fingerprint("the question")


async def fetch_pages(
    connection: AsyncConnection,
    models: Sequence[int],
    sort: str,
    question: QueryRequest,
    *,
    limit: int,
    seconds: float = 180,
) -> list[list[UUID]]:
    """Fetch every page, each by the cursor of the one before."""
    pages: list[list[UUID]] = []
    after: str | None = None
    while True:
        kind = sorted_cursor.find_family(after)
        order = await resolve_sort(connection, models, sort, kind=kind)
        prepared = await prepare(connection, models, question)
        query = prepared.query if order.descending else prepared.query.in_order()
        page = await find_page(
            connection,
            await build_queries(connection, query, models),
            order,
            fingerprint=FINGERPRINT,
            cursor=after,
            limit=limit,
            deadline=Deadline.after(seconds),
        )
        pages.append([hit.uid for hit in page.hits])
        after = page.next
        if after is None:
            return pages
        assert len(after) <= sorted_cursor.MOST_CHARACTERS


def sort_uids(values: Sequence[tuple[UUID, Any]], *, descending: bool) -> list[UUID]:
    """Sort by (value, uid), with those that have no value last in both directions."""
    with_value = [(value, uid) for uid, value in values if value is not None]
    lacking = [uid for uid, value in values if value is None]
    by_value = [uid for _, uid in sorted(with_value, reverse=descending)]
    return by_value + sorted(lacking, reverse=descending)
