"""Counts the quarantined events of a subject that belong to no registered model, and finds whether
any quarantined event mentions it, as an erasure would find them."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from sqlalchemy import ColumnElement, Table, or_
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.erasure.request.criteria import build_predicate, find_subject
from inference_store.erasure.select.quarantine_holds import split_unattributed_by_hold
from inference_store.erasure.select.quarantine_metadata import load_metadata
from inference_store.erasure.select.quarantined_events import (
    QUARANTINE_TABLES,
    EventMetadata,
    QuarantinedEvent,
    read_page,
)
from inference_store.erasure.select.unattributed_events import UnattributedSearch, build_search
from inference_store.objects import Blobs
from inference_store.query.deadline import Deadline

from .erasure_estimate import ErasureEstimate

_Page = tuple[Table, list[QuarantinedEvent], EventMetadata]


async def estimate_unattributed(
    connection: AsyncConnection,
    blobs: Blobs,
    models: Mapping[int, str],
    criteria: Mapping[str, Any],
    deadline: Deadline,
) -> ErasureEstimate:
    """Return how many go beside those of the erasure's models. Raises ObjectStoreUnavailable."""
    search = build_search(criteria, models.values())
    counted: Counter[str] = Counter()
    if search.reach is None:
        return ErasureEstimate()
    pages = _iterate_pages(connection, blobs, criteria, search, search.match)
    async for table, events, metadata in pages:
        free, held = await split_unattributed_by_hold(connection, events, metadata)
        counted += Counter({table.name: len(free), "held": len(held)})
        if deadline.is_over:
            break
    return ErasureEstimate(
        dead_letters=counted["dead_letter"],
        parked_events=counted["parked_event"],
        held=counted["held"],
        partial=deadline.is_over,
    )


async def has_events_of_subject(
    connection: AsyncConnection,
    blobs: Blobs,
    models: Mapping[int, str],
    criteria: Mapping[str, Any],
    deadline: Deadline,
) -> bool:
    """Return whether any quarantined event that the erasure reaches mentions its subject, or nobody
    knows because time was over. Raises ObjectStoreUnavailable."""
    search = build_search(criteria, models.values())

    def match(table: Table) -> ColumnElement[bool]:
        return or_(table.c.model_id.in_(sorted(search.model_ids)), search.match(table))

    pages = _iterate_pages(connection, blobs, criteria, search, match)
    async for _, events, _ in pages:
        if events or deadline.is_over:
            return True
    return False


async def _iterate_pages(
    connection: AsyncConnection,
    blobs: Blobs,
    criteria: Mapping[str, Any],
    search: UnattributedSearch,
    match: Callable[[Table], ColumnElement[bool]],
) -> AsyncIterator[_Page]:
    """Yield the events of the subject that match, of every page of each table."""
    subject = find_subject(criteria)
    if subject is None:
        return
    predicate = await build_predicate(connection, [], criteria)  # of any type
    for table in QUARANTINE_TABLES:
        after = 0
        while page := await read_page(
            connection, table, match(table), after=after, buckets=blobs.buckets
        ):
            metadata = await asyncio.to_thread(load_metadata, blobs, page)
            yield table, search.filter_by_subject(page, subject, predicate, metadata), metadata
            after = page[-1].id
