"""Counts the dead letters and parked events that an erasure would remove, without removing any.

Those of a subject are found by their metadata, as the erasure finds them; the others by their
inference: one that matches, or was erased before. What holds protect does not go, and is counted
separately. A hold that cannot be evaluated for an event protects it, unless its inference goes.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import not_, select, true
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.erasure import holds
from inference_store.erasure.holds.event_holds import find_event_hold
from inference_store.erasure.request.criteria import Subject, find_subject
from inference_store.erasure.select.quarantine_metadata import load_metadata
from inference_store.erasure.select.quarantined_events import (
    QuarantinedEvent,
    filter_by_subject,
    filter_erased,
    read_page,
)
from inference_store.index.tables import inference, unsettled_event
from inference_store.objects import Blobs
from inference_store.query.deadline import Deadline, fetch
from inference_store.query.filters.typed import Predicate
from inference_store.query.matching import Query, match_by_index
from inference_store.query.scan_range import find_pieces_of


@dataclass(frozen=True, slots=True)
class ModelQuery:
    """The criteria of an erasure for one model. `query`: the inferences that match."""

    model: int
    model_id: str
    criteria: Mapping[str, Any]
    predicate: Predicate
    query: Query

    @property
    def subject(self) -> Subject | None:
        """The subject, if the criteria name one."""
        return find_subject(self.criteria)


async def count_quarantined(
    connection: AsyncConnection, blobs: Blobs, model_query: ModelQuery, deadline: Deadline
) -> Counter[str]:
    """Return how many go, by kind, and how many are `held`; `partial` is 1 if time ran out."""
    counted: Counter[str] = Counter()
    of_model = unsettled_event.c.model_id == model_query.model_id
    after = 0
    while events := await read_page(connection, of_model, after=after, buckets=blobs.buckets):
        if deadline.is_over:
            counted["partial"] = 1
            return counted
        counted += await _count_page(connection, blobs, model_query, events, deadline)
        after = events[-1].id
    return counted


async def _count_page(
    connection: AsyncConnection,
    blobs: Blobs,
    model_query: ModelQuery,
    events: Sequence[QuarantinedEvent],
    deadline: Deadline,
) -> Counter[str]:
    current_holds = await holds.list_in_force(connection, [model_query.model])
    deleted_uids = await _find_matching(connection, model_query.query, events, deadline)
    ids = frozenset(model_query.criteria.get("inference_ids", ()))
    matching = {
        quarantined.id: quarantined
        for quarantined in await filter_erased(connection, model_query.model, events, ids)
    }
    matching |= {
        quarantined.id: quarantined
        for quarantined in events
        if quarantined.event and quarantined.event.uid in deleted_uids
    }
    with_metadata = (
        events
        if model_query.subject is not None
        else list(matching.values())
        if current_holds
        else []
    )
    metadata = await asyncio.to_thread(load_metadata, blobs, with_metadata)
    if model_query.subject is not None:
        of_subject = filter_by_subject(events, model_query.subject, model_query.predicate, metadata)
        matching |= {quarantined.id: quarantined for quarantined in of_subject}
    counted: Counter[str] = Counter()
    for quarantined in matching.values():
        is_deleted = quarantined.event is not None and quarantined.event.uid in deleted_uids
        doubted = [] if is_deleted else current_holds
        keeper = find_event_hold(
            current_holds, quarantined.event, metadata.get(quarantined.id), doubted=doubted
        )
        counted[quarantined.counter if keeper is None else "held"] += 1
    return counted


async def _find_matching(
    connection: AsyncConnection,
    query: Query,
    events: Sequence[QuarantinedEvent],
    deadline: Deadline,
) -> set[UUID]:
    """Return the uids of these events whose inference is stored and goes. Raises OutOfTime."""
    uids = [quarantined.event.uid for quarantined in events if quarantined.event is not None]
    matching: set[UUID] = set()
    if query.nothing or query.scan_range.empty or not uids:
        return matching
    for part in await find_pieces_of(
        connection, query.scan_range, newest_first=True, closed=query.closed
    ):
        in_part = [uid for uid in uids if part.lo <= uid < part.hi]
        if in_part:
            held = await holds.build_held_condition(connection, part.model, lo=part.lo, hi=part.hi)
            matches = match_by_index(query, part)[0].subquery()
            statement = select(inference.c.uid).where(
                part.of(inference),
                inference.c.uid.in_(in_part),
                inference.c.uid.in_(select(matches.c.uid)),
                true() if held is None else not_(held),
            )
            rows = await fetch(connection, statement, deadline, large=query.large)
            matching |= {row.uid for row in rows}
    return matching
