"""Counts what would go, without a mark: what an erasure would erase, and what a policy would.

Dead letters and parked events of a subject are found by their metadata, as the erasure finds
them; the others by their inference: one that matches, or was erased before. What holds protect
does not go, and is counted separately. A hold that cannot be evaluated for an event protects it,
unless its inference goes.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Protocol, TypeAlias
from uuid import UUID

from sqlalchemy import (
    ARRAY,
    BigInteger,
    ColumnElement,
    FromClause,
    and_,
    any_,
    case,
    cast,
    false,
    func,
    literal,
    not_,
    null,
    or_,
    select,
    true,
)
from sqlalchemy import UUID as UUID_TYPE
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.erasure import holds, quarantine
from inference_store.erasure.held_deletions import HeldRow
from inference_store.erasure.holds import Hold, build_hold_condition
from inference_store.erasure.pending_deletions import KEYS
from inference_store.erasure.policies import ErasureScope
from inference_store.erasure.quarantine import QuarantinedEvent
from inference_store.erasure.requests import find_subject
from inference_store.erasure.selection import RequestedPart
from inference_store.index import registrations
from inference_store.index.tables import inference, unsettled_event
from inference_store.inference.field_docs import Stored
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
from inference_store.query.plan import count_matches, match_by_index
from inference_store.query.preparation import build_query


class Loss(Stored):
    """What would go now. What legal holds keep is counted in `held` alone."""

    inferences: int
    objects: int
    bytes: int
    """Of their inputs, as far as sizes are known."""
    unknown_sizes: int
    """Inferences whose inputs have no known size."""
    dead_letters: int
    parked_events: int
    held: int
    """Further inferences, dead letters and parked events, which legal holds keep."""
    undecided: int
    """Inferences that a query by this filter shows and that stay: not all of their metadata or
    predictions is indexed, and what is missing may say otherwise."""
    oldest: datetime | None
    newest: datetime | None
    partial: bool
    """Whether time ran out before everything was counted, so that there may be more."""

    def add(self, **counts: Any) -> "Loss":
        """Return it with these added to the counts; the ends of two times are wider, and what is
        partial stays so."""
        ends = [self.oldest, self.newest, counts.pop("oldest", None), counts.pop("newest", None)]
        times = [at for at in ends if at is not None]
        is_partial = self.partial or counts.pop("partial", False)
        values = {name: getattr(self, name) + int(count) for name, count in counts.items()}
        values |= {"oldest": min(times, default=None), "newest": max(times, default=None)}
        return self.model_copy(update=values | {"partial": is_partial})


_ZEROS: Final[Mapping[str, Any]] = dict.fromkeys(Loss.model_fields, 0)
NO_LOSS: Final = Loss(**{**_ZEROS, "oldest": None, "newest": None, "partial": False})


@dataclass(frozen=True, slots=True)
class Going:
    """What would go of a model: `select` selects it in a piece of the range, with what is held.

    Its rows have the columns of `count_loss`, and `uid`. `closed`: also of spans that are being
    dropped; `large`: its statements are built beside the event loop.
    """

    scan_range: ScanRange
    select: Callable[[ScanRange, ColumnElement[bool]], FromClause]
    closed: bool = False
    large: bool = False

    async def find(self, connection: AsyncConnection, piece: ScanRange) -> FromClause:
        """Return the rows of a piece, with `held` by the holds that are in force."""
        return self.select(piece, await holds.build_held_condition(connection, piece))

    async def fetch_uids(
        self,
        connection: AsyncConnection,
        piece: ScanRange,
        deadline: Deadline,
        among: Sequence[UUID] | None = None,
        limit: int | None = None,
    ) -> Sequence[UUID]:
        """Return the first uids of a piece that no hold protects, of all or of `among`. Raises
        OutOfTime."""
        rows = await self.find(connection, piece)
        query = select(rows.c.uid).where(not_(rows.c.held)).order_by(rows.c.uid).limit(limit)
        if among is not None:
            # as one parameter
            query = query.where(rows.c.uid == any_(literal(list(among), ARRAY(UUID_TYPE()))))
        found = await fetch(connection, query, deadline, large=self.large)
        return [row.uid for row in found]


def count_loss(rows: FromClause, part: ErasureScope) -> Mapping[str, ColumnElement[Any]]:
    """Return aggregates by name, over the rows that lose this part unless they are `held`.

    A size that is NULL is unknown, as that of every response is.
    """
    here = rows.c
    goes = and_(here[part], not_(here.held))
    size = cast(null(), BigInteger()) if part == "response" else here.data_size
    return {
        "inferences": func.count().filter(goes),
        "objects": func.coalesce(func.sum(here.objects).filter(goes), 0),
        "bytes": func.coalesce(func.sum(size).filter(goes), 0),
        "unknown_sizes": func.count().filter(goes, size.is_(None)),
        "held": func.count().filter(here[part], here.held),
        "oldest": func.min(here.received_at).filter(goes),
        "newest": func.max(here.received_at).filter(goes),
    }


def list_requested(requested: RequestedPart) -> Going:
    """Return what an erasure by criteria would erase of a model."""
    query = requested.query
    nothing = ScanRange(requested.model, UUID(int=0), UUID(int=0))
    where = nothing if query.nothing else query.scan_range

    def choose(piece: ScanRange, held: ColumnElement[bool]) -> FromClause:
        return _select_matching(piece, inference.c.uid.in_(match_by_index(query, piece)), held)

    return Going(where, choose, query.closed, query.large)


def _select_matching(
    piece: ScanRange, matches: ColumnElement[bool], held: ColumnElement[bool]
) -> FromClause:
    here = inference.c
    objects = sum((case((here[key].is_not(None), 1), else_=0) for key in KEYS), literal(0))
    columns = (here.uid, here.received_at, here.data_size, objects.label("objects"))
    query = select(*columns, held.label("held"), true().label("inference"))
    return query.where(piece.of(inference), matches).subquery()


async def count_held(connection: AsyncConnection, hold: Hold, *, seconds: float) -> Loss:
    """Count what a hold keeps from going: what it matches now, in force or not, as far as time
    allows. Raises HoldUnreadable."""
    deadline, loss = Deadline.after(seconds), NO_LOSS
    every = await registrations.every_model(connection) if hold.model is None else [hold.model]
    try:
        for model in every:
            where = range_of_time(model, None, None)
            for piece in await find_pieces_of(connection, where, newest_first=True):
                matches = await build_hold_condition(connection, hold, piece)
                rows = _select_matching(piece, matches, held=false())
                loss = loss.add(**await _count_piece(connection, rows, deadline))
    except OutOfTime:
        return loss.add(partial=True)
    return loss


async def count_requested(
    connection: AsyncConnection,
    blobs: Blobs,
    model_id: str,
    requested: RequestedPart,
    deadline: Deadline,
) -> Loss:
    """Count what an erasure would erase of a model, the newest inferences first. Raises
    ObjectStoreUnavailable."""
    going, loss = list_requested(requested), NO_LOSS
    where = range_of_time(requested.model, None, None)
    about, of_model = [requested.predicate], unsettled_event.c.model_id == model_id
    try:
        for piece in await find_pieces_of(
            connection, going.scan_range, newest_first=True, closed=True
        ):
            rows = await going.find(connection, piece)
            loss = loss.add(**await _count_piece(connection, rows, deadline, large=going.large))
        doubts = await build_query(connection, where, about, matches="doubtful")
        if not doubts.nothing:
            for piece in await find_pieces_of(connection, doubts.scan_range, newest_first=True):
                counting = count_matches(match_by_index(doubts, piece))
                [row] = await fetch(connection, counting, deadline, large=doubts.large)
                loss = loss.add(undecided=row.matches)
        pages = quarantine.iterate_pages(lambda: nullcontext(connection), of_model, blobs.buckets)
        async for events in pages:
            if deadline.is_over:
                raise deadline.make_error()
            loss = loss.add(**await _count_page(connection, blobs, requested, events, deadline))
    except OutOfTime:
        return loss.add(partial=True)
    return loss


async def _count_piece(
    connection: AsyncConnection, rows: FromClause, deadline: Deadline, *, large: bool = False
) -> Mapping[str, Any]:
    losing = count_loss(rows, "inference")
    query = select(*(column.label(name) for name, column in losing.items()))
    [row] = await fetch(connection, query, deadline, large=large)
    return dict(row._mapping)


async def _count_page(
    connection: AsyncConnection,
    blobs: Blobs,
    requested: RequestedPart,
    events: Sequence[QuarantinedEvent],
    deadline: Deadline,
) -> Mapping[str, int]:
    subject, model = find_subject(requested.criteria), requested.model
    current_holds = await holds.list_in_force(connection, [model])
    going = await _find_going(connection, list_requested(requested), events, deadline)
    ids = frozenset(requested.criteria.get("inference_ids", ()))
    if subject is not None:
        events = await asyncio.to_thread(quarantine.load_metadata, blobs, events)
    matching = await quarantine.filter_erased(connection, model, events, ids)
    matching += [item for item in events if item.event and item.event.uid in going]
    if subject is not None:
        about = requested.predicate
        matching += await quarantine.filter_by_subject(connection, events, subject, about)
    elif current_holds:
        matching = await asyncio.to_thread(quarantine.load_metadata, blobs, matching)
    found = list({item.id: item for item in matching}.values())
    split = await quarantine.split_by_hold(connection, found, model=model, going=going)
    return _count_events(*split)


def _count_events(free: Sequence[QuarantinedEvent], held: Sequence[HeldRow]) -> Mapping[str, int]:
    parked = sum(quarantined.is_parked for quarantined in free)
    return {"dead_letters": len(free) - parked, "parked_events": parked, "held": len(held)}


async def _find_going(
    connection: AsyncConnection,
    going: Going,
    events: Sequence[QuarantinedEvent],
    deadline: Deadline,
) -> set[UUID]:
    """Return the uids of these events whose inference goes."""
    uids = [quarantined.event.uid for quarantined in events if quarantined.event is not None]
    pieces = await find_pieces_of(
        connection, going.scan_range, newest_first=True, closed=going.closed
    )
    found: set[UUID] = set()
    for piece in pieces if uids else ():
        if in_piece := [uid for uid in uids if piece.lo <= uid < piece.hi]:
            found |= set(await going.fetch_uids(connection, piece, deadline, among=in_piece))
    return found


async def count_unattributed(
    connection: AsyncConnection,
    blobs: Blobs,
    models: Mapping[int, str],
    criteria: Mapping[str, Any],
    deadline: Deadline,
) -> Loss:
    """Return how many go beside those of the erasure's models. Raises ObjectStoreUnavailable."""
    model_ids, loss = models.values(), NO_LOSS
    about = (lambda: nullcontext(connection), blobs, criteria, model_ids)
    beside = quarantine.match_unattributed(criteria, model_ids)
    async for events in quarantine.iterate_mentions(*about, beside):
        split = await quarantine.split_by_hold(connection, events, model=None)
        loss = loss.add(**_count_events(*split))
        if deadline.is_over:
            return loss.add(partial=True)
    return loss


async def has_events_of_subject(
    connection: AsyncConnection,
    blobs: Blobs,
    models: Mapping[int, str],
    criteria: Mapping[str, Any],
    deadline: Deadline,
) -> bool:
    """Return whether any quarantined event that the erasure reaches mentions its subject, or nobody
    knows because time was over. Raises ObjectStoreUnavailable."""
    model_ids = models.values()
    about = (lambda: nullcontext(connection), blobs, criteria, model_ids)
    beside = quarantine.match_unattributed(criteria, model_ids)
    match = or_(unsettled_event.c.model_id.in_(sorted(model_ids)), beside)
    async for events in quarantine.iterate_mentions(*about, match):
        if events or deadline.is_over:
            return True
    return False


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


async def list_uids(
    connection: AsyncConnection,
    of_models: Sequence[Going],
    *,
    after: ErasedUid | None,
    limit: int,
    deadline: Deadline,
) -> UidPage:
    """Return the next uids that no hold protects, in order of the models."""
    uids: list[ErasedUid] = []
    last = after or _START
    for going in of_models:
        where = going.scan_range
        if where.model < last[0]:
            continue
        if where.model == last[0]:
            where = where.clip(UUID(int=min(last[1].int + 1, where.hi.int)), where.hi)
        for piece in await find_pieces_of(
            connection, where, newest_first=False, closed=going.closed
        ):
            most = limit + 1 - len(uids)
            try:
                more = await going.fetch_uids(connection, piece, deadline, limit=most)
            except OutOfTime:
                return UidPage(uids, last, partial=True)
            uids += [(piece.model, uid) for uid in more]
            if len(uids) > limit:
                return UidPage(uids[:limit], uids[limit - 1])
            last = piece.model, UUID(int=piece.hi.int - 1)
    return UidPage(uids, None)


class MemberLists(Protocol):
    """The lists of exports. `exports`: those of which a member was found."""

    exports: set[UUID]

    def walk(
        self, connection: AsyncConnection, model: int, lo: UUID, hi: UUID
    ) -> AsyncIterator[tuple[UUID, Sequence[UUID]]]:
        """Yield the lists of a model that overlap [lo, hi), of exports that are not found yet."""


async def find_exports(
    connection: AsyncConnection, of_models: Iterable[Going], lists: MemberLists, deadline: Deadline
) -> bool:
    """Add the exports that name something that would go; False: time ran out."""
    try:
        for going in of_models:
            where = going.scan_range
            ranges = await find_ranges(connection, closed=going.closed)
            async for export, uids in lists.walk(connection, where.model, where.lo, where.hi):
                end = UUID(int=min(uids[-1].int + 1, where.hi.int))
                pieces = cut_range(where.clip(uids[0], end), ranges, newest_first=False)
                for piece in pieces:
                    found = await going.fetch_uids(connection, piece, deadline, among=uids, limit=1)
                    if found:
                        lists.exports.add(export)
                        break
    except OutOfTime:
        return False
    return True
