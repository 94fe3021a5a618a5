"""The dead letters and parked events that an erasure would take, counted without taking any.

Those of a subject are found by their metadata, as the erasure finds them; the others by their
inference: one that matches, or was erased before. What holds keep does not go, and is counted
apart; a hold that cannot be asked of one keeps it, unless its inference goes.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import Table, not_, select, true
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.erasure import holds
from inference_store.erasure.holds.of_events import keeping
from inference_store.index.tables import inference
from inference_store.objects import Blobs
from inference_store.query.bounded import Deadline, fetch
from inference_store.query.filters.typed import Predicate
from inference_store.query.matching import Query, match_by_index
from inference_store.query.scan_range import find_pieces_of

from . import unstored
from .aside_metadata import metadata_of
from .chosen import Subject, subject_in
from .unstored import Aside


@dataclass(frozen=True, slots=True)
class ModelQuery:
    """What is asked for of one model. `query`: the inferences that match."""

    model: int
    model_id: str
    asked: Mapping[str, Any]
    predicate: Predicate
    query: Query

    @property
    def subject(self) -> Subject | None:
        """The subject, where it is asked for by one."""
        return subject_in(self.asked)


async def count_quarantined(
    connection: AsyncConnection, blobs: Blobs, one: ModelQuery, deadline: Deadline
) -> Counter[str]:
    """How many go, by table, and how many are `held`; `partial` where time was over."""
    counted: Counter[str] = Counter()
    for table in unstored.TABLES:
        after = 0
        while some := await _page(connection, blobs, table, one, after):
            if deadline.is_over:
                counted["partial"] = 1
                return counted
            counted += await _count_page(connection, blobs, table, one, some, deadline)
            after = some[-1].id
    return counted


async def _page(
    connection: AsyncConnection, blobs: Blobs, table: Table, one: ModelQuery, after: int
) -> list[Aside]:
    return await unstored.page(connection, table, one.model_id, after=after, buckets=blobs.buckets)


async def _count_page(  # noqa: PLR0917
    connection: AsyncConnection,
    blobs: Blobs,
    table: Table,
    one: ModelQuery,
    some: Sequence[Aside],
    deadline: Deadline,
) -> Counter[str]:
    in_force = await holds.in_force(connection, [one.model])
    going = await _find_matching(connection, one.query, some, deadline)
    ids = frozenset(one.asked.get("inference_ids", ()))
    telling = {each.id: each for each in await unstored.erased(connection, one.model, some, ids)}
    telling |= {each.id: each for each in some if each.event and each.event.uid in going}
    asked = some if one.subject is not None else list(telling.values()) if in_force else []
    metadata = await asyncio.to_thread(metadata_of, blobs, asked)
    if one.subject is not None:
        of_subject = unstored.of_subject(some, one.subject, one.predicate, metadata)
        telling |= {each.id: each for each in of_subject}
    counted: Counter[str] = Counter()
    for each in telling.values():
        gone = each.event is not None and each.event.uid in going
        doubted = [] if gone else in_force
        keeper = keeping(in_force, each.event, metadata.get(each.id), doubted=doubted)
        counted[table.name if keeper is None else "held"] += 1
    return counted


async def _find_matching(
    connection: AsyncConnection, query: Query, some: Sequence[Aside], deadline: Deadline
) -> set[UUID]:
    """The uids of these events whose inference is stored and goes. Raises OutOfTime."""
    uids = [each.event.uid for each in some if each.event is not None]
    found: set[UUID] = set()
    if query.nothing or query.scan_range.empty or not uids:
        return found
    for part in await find_pieces_of(
        connection, query.scan_range, newest_first=True, closed=query.closed
    ):
        there = [uid for uid in uids if part.lo <= uid < part.hi]
        if there:
            held = await holds.predicate(connection, part.model, lo=part.lo, hi=part.hi)
            matches = match_by_index(query, part)[0].subquery()
            statement = select(inference.c.uid).where(
                part.of(inference),
                inference.c.uid.in_(there),
                inference.c.uid.in_(select(matches.c.uid)),
                true() if held is None else not_(held),
            )
            rows = await fetch(connection, statement, deadline, large=query.large)
            found |= {row.uid for row in rows}
    return found
