"""Counts the quarantined events of a subject that belong to no registered model, and finds whether
any quarantined event mentions it, as an erasure would find them."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from typing import Any

from sqlalchemy import ColumnElement, or_
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.erasure.request.criteria import build_predicate, find_subject
from inference_store.erasure.select.quarantine_holds import split_unattributed_by_hold
from inference_store.erasure.select.quarantine_metadata import load_metadata
from inference_store.erasure.select.quarantined_events import (
    EventMetadata,
    QuarantinedEvent,
    read_page,
)
from inference_store.erasure.select.unattributed_events import UnattributedSearch, build_search
from inference_store.index.tables import unsettled_event
from inference_store.objects import Blobs
from inference_store.query.deadline import Deadline

from .erasure_estimate import ErasureEstimate

_Page = tuple[list[QuarantinedEvent], EventMetadata]


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
    pages = _iterate_pages(connection, blobs, criteria, search, search.match())
    async for events, metadata in pages:
        free, held = await split_unattributed_by_hold(connection, events, metadata)
        counted += Counter(event.counter for event in free)
        counted["held"] += len(held)
        if deadline.is_over:
            break
    return ErasureEstimate(
        dead_letters=counted["dead_letters"],
        parked_events=counted["parked_events"],
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
    of_models = unsettled_event.c.model_id.in_(sorted(search.model_ids))
    match = or_(of_models, search.match())
    pages = _iterate_pages(connection, blobs, criteria, search, match)
    async for events, _ in pages:
        if events or deadline.is_over:
            return True
    return False


async def _iterate_pages(
    connection: AsyncConnection,
    blobs: Blobs,
    criteria: Mapping[str, Any],
    search: UnattributedSearch,
    match: ColumnElement[bool],
) -> AsyncIterator[_Page]:
    """Yield the events of the subject that match, page by page."""
    subject = find_subject(criteria)
    if subject is None:
        return
    predicate = await build_predicate(connection, [], criteria)  # of any type
    after = 0
    while page := await read_page(connection, match, after=after, buckets=blobs.buckets):
        metadata = await asyncio.to_thread(load_metadata, blobs, page)
        yield search.filter_by_subject(page, subject, predicate, metadata), metadata
        after = page[-1].id
