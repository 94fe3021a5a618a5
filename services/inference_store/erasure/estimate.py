"""Estimates what an erasure would erase: counted without marks, as far as time allows.

Dead letters and parked events of a subject are found by their metadata, as the erasure finds
them; the others by their inference: one that matches, or was erased before. What holds protect
does not go, and is counted separately. A hold that cannot be evaluated for an event protects it,
unless its inference goes.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final, Protocol, TypeAlias
from uuid import UUID

from sqlalchemy import (
    ARRAY,
    ColumnElement,
    Select,
    and_,
    any_,
    case,
    false,
    func,
    literal,
    not_,
    or_,
    select,
    true,
)
from sqlalchemy import UUID as UUID_TYPE
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.erasure import holds
from inference_store.erasure.pending_deletions import KEYS
from inference_store.erasure.quarantine import (
    EventMetadata,
    QuarantinedEvent,
    UnattributedSearch,
    build_search,
    filter_by_subject,
    filter_erased,
    find_event_hold,
    load_metadata,
    read_page,
    split_unattributed_by_hold,
)
from inference_store.erasure.requests import Subject, build_predicate, find_subject
from inference_store.index.tables import inference, unsettled_event
from inference_store.objects import Blobs
from inference_store.query.deadline import (
    Deadline,
    OutOfTime,
    ScanRange,
    cut_range,
    fetch,
    find_pieces_of,
    find_ranges,
    range_of_time,
)
from inference_store.query.filters.typed import Predicate
from inference_store.query.matching import Query, count_matches, match_by_index
from inference_store.query.preparation import build_query, find_doubtful


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


_NAMES = {"count": "inferences"}
_SUMMED = ("inferences", "objects", "bytes", "unknown_sizes", "held")
_BESIDE = ("undecided", "dead_letters", "parked_events")


@dataclass(frozen=True, slots=True)
class ErasureEstimate:
    """Counts of what would be erased now; what holds protect is counted in `held` alone."""

    inferences: int = 0
    objects: int = 0
    bytes: int = 0
    """Of their inputs, as far as sizes are known."""
    unknown_sizes: int = 0
    """Inferences whose inputs have no known size."""
    dead_letters: int = 0
    parked_events: int = 0
    held: int = 0
    """More of them, inferences, dead letters and parked events, which legal holds keep."""
    undecided: int = 0
    """Inferences that a query by this filter shows and that stay: not all of their metadata or
    predictions is indexed, and what is missing may say otherwise."""
    oldest: datetime | None = None
    newest: datetime | None = None
    partial: bool = False
    """Time was over before all was looked at: there may be more."""


_Page = tuple[list[QuarantinedEvent], EventMetadata]
ErasedUid: TypeAlias = tuple[int, UUID]
"""A model's integer, and the uid of one of its inferences."""
_START: Final[ErasedUid] = (0, UUID(int=0))


@dataclass(frozen=True, slots=True)
class UidPage:
    """Uids that would go, in order of model and time; None: they were not requested.

    `partial`: time ran out before the page was full, and there may be more after `last`, the
    position that was reached.
    """

    uids: Sequence[ErasedUid] | None
    last: ErasedUid | None
    partial: bool = False


async def prepare_queries(
    connection: AsyncConnection, models: Mapping[int, str], criteria: Mapping[str, Any]
) -> list[ModelQuery]:
    """Return a query for each model. Raises as `build_predicate` and `build_query` do."""
    queries = []
    for model, model_id in sorted(models.items()):
        predicate = await build_predicate(connection, model, criteria)
        query = await build_query(
            connection, range_of_time(model, None, None), [predicate], certain=True
        )
        # as it will be marked: also what another erasure hides, which may still be cancelled
        query = replace(query, marks=False, closed=True)
        queries.append(ModelQuery(model, model_id, criteria, predicate, query))
    return queries


async def estimate_erasure(
    connection: AsyncConnection, blobs: Blobs, queries: Sequence[ModelQuery], deadline: Deadline
) -> dict[int, ErasureEstimate]:
    """Return an estimate for each model, the newest inferences first. Raises
    ObjectStoreUnavailable."""
    estimates = {}
    for model_query in queries:
        estimate = await _estimate_model(connection, model_query.query, deadline)
        doubts = await find_doubtful(
            connection, range_of_time(model_query.model, None, None), [model_query.predicate]
        )
        if doubts is not None and not estimate.partial:
            estimate = await _count_undecided(connection, estimate, doubts, deadline)
        estimates[model_query.model] = await _add_quarantined(
            connection, blobs, model_query, estimate, deadline
        )
    return estimates


def sum_estimates(estimates: Iterable[ErasureEstimate]) -> ErasureEstimate:
    """Return the sum of the estimates of all models."""
    total = ErasureEstimate()
    for estimate in estimates:
        more = {name: getattr(total, name) + getattr(estimate, name) for name in _BESIDE}
        total = replace(
            _add_row(total, estimate), **more, partial=total.partial or estimate.partial
        )
    return total


async def _estimate_model(
    connection: AsyncConnection, query: Query, deadline: Deadline
) -> ErasureEstimate:
    total = ErasureEstimate()
    if query.nothing or query.scan_range.empty:
        return total
    for part in await find_pieces_of(
        connection, query.scan_range, newest_first=True, closed=query.closed
    ):
        held = await holds.build_held_condition(connection, part.model, lo=part.lo, hi=part.hi)
        try:
            rows = await fetch(
                connection, _select_counts(query, part, held), deadline, large=query.large
            )
        except OutOfTime:
            return replace(total, partial=True)
        total = _add_row(total, rows[0])
    return total


def _select_counts(
    query: Query, scan_range: ScanRange, held: ColumnElement[bool] | None
) -> Select[Any]:
    here = inference.c
    matches, _ = match_by_index(query, scan_range)
    uids = matches.subquery()
    objects_named = [case((here[key].is_not(None), 1), else_=0) for key in KEYS]
    is_held = false() if held is None else held
    losing = build_loss_columns(true(), is_held, here.data_size, here.received_at)
    objects = func.sum(sum(objects_named[1:], objects_named[0])).filter(not_(is_held))
    return select(
        func.coalesce(objects, 0).label("objects"),
        *(column.label(_NAMES.get(name, name)) for name, column in losing.items()),
    ).where(scan_range.of(inference), here.uid.in_(select(uids.c.uid)))


def build_loss_columns(
    lost: ColumnElement[bool],
    held: ColumnElement[bool],
    size: ColumnElement[Any],
    received_at: ColumnElement[Any],
) -> Mapping[str, ColumnElement[Any]]:
    """Return aggregates by name, over the rows that are lost unless a hold protects them.

    A size that is NULL is unknown.
    """
    goes = and_(lost, not_(held))
    return {
        "count": func.count().filter(goes),
        "bytes": func.coalesce(func.sum(size).filter(goes), 0),
        "unknown_sizes": func.count().filter(goes, size.is_(None)),
        "held": func.count().filter(lost, held),
        "oldest": func.min(received_at).filter(goes),
        "newest": func.max(received_at).filter(goes),
    }


def _add_row(estimate: ErasureEstimate, row: Any) -> ErasureEstimate:
    ends = [
        at for at in (estimate.oldest, estimate.newest, row.oldest, row.newest) if at is not None
    ]
    sums = {name: getattr(estimate, name) + int(getattr(row, name)) for name in _SUMMED}
    return replace(estimate, **sums, oldest=min(ends, default=None), newest=max(ends, default=None))


async def _count_undecided(
    connection: AsyncConnection, estimate: ErasureEstimate, query: Query, deadline: Deadline
) -> ErasureEstimate:
    for part in await find_pieces_of(connection, query.scan_range, newest_first=True):
        try:
            [row] = await fetch(connection, count_matches(query, part), deadline, large=query.large)
        except OutOfTime:
            return replace(estimate, partial=True)
        estimate = replace(estimate, undecided=estimate.undecided + row.matches)
    return estimate


async def _add_quarantined(
    connection: AsyncConnection,
    blobs: Blobs,
    model_query: ModelQuery,
    estimate: ErasureEstimate,
    deadline: Deadline,
) -> ErasureEstimate:
    try:
        counts = await count_quarantined(connection, blobs, model_query, deadline)
    except OutOfTime:
        return replace(estimate, partial=True)
    return replace(
        estimate,
        dead_letters=counts["dead_letters"],
        parked_events=counts["parked_events"],
        held=estimate.held + counts["held"],
        partial=estimate.partial or bool(counts["partial"]),
    )


async def count_quarantined(
    connection: AsyncConnection, blobs: Blobs, model_query: ModelQuery, deadline: Deadline
) -> Counter[str]:
    """Return how many go, by kind, and how many are `held`; `partial` is 1 if time ran out."""
    counted: Counter[str] = Counter()
    after, of_model = 0, unsettled_event.c.model_id == model_query.model_id
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
    matching = await filter_erased(connection, model_query.model, events, ids)
    matching += [item for item in events if item.event and item.event.uid in deleted_uids]
    with_metadata = events if model_query.subject is not None else matching if current_holds else []
    metadata = await asyncio.to_thread(load_metadata, blobs, with_metadata)
    if model_query.subject is not None:
        matching += filter_by_subject(events, model_query.subject, model_query.predicate, metadata)
    counted: Counter[str] = Counter()
    for quarantined in {item.id: item for item in matching}.values():
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
    uids = [quarantined.event.uid for quarantined in events if quarantined.event is not None]
    matching: set[UUID] = set()
    if query.nothing or query.scan_range.empty or not uids:
        return matching
    for part in await find_pieces_of(
        connection, query.scan_range, newest_first=True, closed=query.closed
    ):
        in_part = [uid for uid in uids if part.lo <= uid < part.hi]
        if in_part:
            statement = await _select_going(connection, query, part)
            statement = statement.where(inference.c.uid.in_(in_part))
            rows = await fetch(connection, statement, deadline, large=query.large)
            matching |= {row.uid for row in rows}
    return matching


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
    match = or_(unsettled_event.c.model_id.in_(sorted(search.model_ids)), search.match())
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
    subject = find_subject(criteria)
    if subject is None:
        return
    predicate = await build_predicate(connection, [], criteria)  # of any type
    after = 0
    while page := await read_page(connection, match, after=after, buckets=blobs.buckets):
        metadata = await asyncio.to_thread(load_metadata, blobs, page)
        yield search.filter_by_subject(page, subject, predicate, metadata), metadata
        after = page[-1].id


async def list_uids(
    connection: AsyncConnection,
    queries: Sequence[Query],
    *,
    after: ErasedUid | None,
    limit: int,
    deadline: Deadline,
) -> UidPage:
    """Return the next uids that no hold protects; `queries`: one for each model, in order of the
    models."""
    uids: list[ErasedUid] = []
    last = after or _START
    for query in queries:
        if query.nothing or query.scan_range.empty or query.scan_range.model < last[0]:
            continue
        for part in await _list_pieces(connection, query, last):
            going = await _select_going(connection, query, part)
            statement = going.order_by(inference.c.uid).limit(limit + 1 - len(uids))
            try:
                rows = await fetch(connection, statement, deadline, large=query.large)
            except OutOfTime:
                return UidPage(uids, last, partial=True)
            uids += [(part.model, row.uid) for row in rows]
            if len(uids) > limit:
                return UidPage(uids[:limit], uids[limit - 1])
            last = part.model, UUID(int=part.hi.int - 1)
    return UidPage(uids, None)


async def _list_pieces(
    connection: AsyncConnection, query: Query, last: ErasedUid
) -> list[ScanRange]:
    scan_range = query.scan_range
    if last[0] == scan_range.model:
        scan_range = scan_range.clip(
            UUID(int=min(last[1].int + 1, scan_range.hi.int)), scan_range.hi
        )
    return await find_pieces_of(connection, scan_range, newest_first=False, closed=query.closed)


async def _select_going(
    connection: AsyncConnection, query: Query, part: ScanRange
) -> Select[tuple[UUID]]:
    held = await holds.build_held_condition(connection, part.model, lo=part.lo, hi=part.hi)
    matches, here = match_by_index(query, part)[0].subquery(), inference.c
    going = select(here.uid).where(part.of(inference), here.uid.in_(select(matches.c.uid)))
    return going if held is None else going.where(not_(held))


# Finds the exports that name something that would be erased, as far as time allows.

HasAny = Callable[[ScanRange, Sequence[UUID]], Awaitable[bool]]
"""Says whether any of some uids, which lie in a range, would be erased. Raises OutOfTime."""


class MemberLists(Protocol):
    """The lists of exports. `exports`: those of which a member was found."""

    exports: set[UUID]

    def walk(
        self, connection: AsyncConnection, model: int, lo: UUID, hi: UUID
    ) -> AsyncIterator[tuple[UUID, Sequence[UUID]]]:
        """Yield the lists of a model that overlap [lo, hi), of exports that are not found yet."""


async def add_exports(
    connection: AsyncConnection, lists: MemberLists, scan_range: ScanRange, has_any: HasAny
) -> None:
    """Add the exports that name something in the range that would be erased. Raises OutOfTime."""
    walk = lists.walk(connection, scan_range.model, scan_range.lo, scan_range.hi)
    async for export, uids in walk:
        clipped = scan_range.clip(uids[0], UUID(int=min(uids[-1].int + 1, scan_range.hi.int)))
        if not clipped.empty and await has_any(clipped, uids):
            lists.exports.add(export)


async def find_exports(
    connection: AsyncConnection, queries: Sequence[Query], lists: MemberLists, deadline: Deadline
) -> bool:
    """Add the exports that name something that matches and no hold protects; False: time ran
    out."""
    try:
        for query in queries:
            if not query.nothing and not query.scan_range.empty:
                await _add_of_query(connection, query, lists, deadline)
    except OutOfTime:
        return False
    return True


async def _add_of_query(
    connection: AsyncConnection, query: Query, lists: MemberLists, deadline: Deadline
) -> None:
    ranges = await find_ranges(connection, closed=query.closed)

    async def has_any(part: ScanRange, uids: Sequence[UUID]) -> bool:
        for piece in cut_range(part, ranges, newest_first=False):
            held = await holds.build_held_condition(
                connection, piece.model, lo=piece.lo, hi=piece.hi
            )
            matches = match_by_index(query, piece)[0].subquery()
            statement = select(true()).where(
                piece.of(inference),
                among_uids(inference.c.uid, uids),
                inference.c.uid.in_(select(matches.c.uid)),
                true() if held is None else not_(held),
            )
            if await fetch(connection, statement.limit(1), deadline, large=query.large):
                return True
        return False

    await add_exports(connection, lists, query.scan_range, has_any)


def among_uids(column: ColumnElement[UUID], uids: Sequence[UUID]) -> ColumnElement[bool]:
    """Return the condition that a column is one of the uids, as one parameter."""
    return column == any_(literal(list(uids), ARRAY(UUID_TYPE(as_uuid=True))))
