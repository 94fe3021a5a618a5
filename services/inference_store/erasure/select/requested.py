"""Selects what was requested, batch by batch, in the order of time."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.erasure.mark.pending_deletions import limit_to_few_spans
from inference_store.erasure.progress.erasure import Erasure
from inference_store.erasure.request.criteria import build_predicate
from inference_store.index.tables import erasure_model
from inference_store.query.deadline import Deadline
from inference_store.query.preparation import build_query
from inference_store.query.scan_range import range_of_time
from inference_store.query.search import find_by_time

_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class UnmarkedModel:
    """A model that is not all marked yet, and the last uid that was checked."""

    model: int
    after: UUID | None


@dataclass(frozen=True, slots=True)
class UidBatch:
    """Uids that match, and the position at which the search goes on; None: there are no more."""

    uids: Sequence[UUID]
    position: UUID | None


async def list_unmarked_models(
    connection: AsyncConnection, erasure: Erasure
) -> list[UnmarkedModel]:
    """Return the models of an erasure that are not all marked."""
    here = erasure_model.c
    query = select(here.model, here.marked_to).where(
        here.erasure == erasure.id, here.marked_at.is_(None)
    )
    rows = await connection.execute(query.order_by(here.model))
    return [UnmarkedModel(row.model, row.marked_to) for row in rows]


async def find_requested(
    connection: AsyncConnection, erasure: Erasure, part: UnmarkedModel, *, limit: int
) -> UidBatch:
    """Find the next certain matches, oldest first: at most `limit`, and in few partitions.

    Raises OutOfTime if the filter cannot be answered in two minutes.
    """
    predicate = await build_predicate(connection, part.model, erasure.asked or {})
    where = range_of_time(part.model, None, None)
    query = await build_query(connection, where, [predicate], certain=True)
    # also what is hidden, by the marks of others and because its span is closed
    query = replace(query.in_order(), marks=False, closed=True)
    if part.after is not None:
        query = query.after(part.after)
    page = await find_by_time(connection, [query], limit=limit, deadline=Deadline.after(_SECONDS))
    uids = await limit_to_few_spans(connection, page.uids)
    if len(uids) < len(page.uids) or len(uids) == limit:
        return UidBatch(uids, uids[-1])
    return UidBatch(uids, page.searched if page.out_of_time else None)
