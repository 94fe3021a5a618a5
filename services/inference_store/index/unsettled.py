"""Unsettled events: read from Kafka and not stored.

A dead letter could not be indexed: it waits for a decision. A parked event misses a blob: it is
tried again on a schedule, and becomes a dead letter when that gives up. Both are rows of one table,
and a row keeps its id whatever its state becomes: an erasure that walks the ids misses none.

    parked → open (given up) or settled; open → redrive (asked for) → open, parked or settled
    open, parked → discarded
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, Literal, TypeAlias, cast

from sqlalchemy import ColumnElement, and_, case, delete, func, null, select, update
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.access import EVERYTHING, AccessScope
from inference_store.index.registrations import match_model_ids
from inference_store.inference.errors import Conflict, NotFound

from . import accounting
from .accounting import Outcome, PartitionId
from .tables import dead_letter_limit_lift, kafka_partition, unsettled_event

Kind: TypeAlias = Literal["dead letter", "parked event"]
"""A dead letter that a redrive has parked is both."""
# Nobody has to decide about these.
SETTLED = ("discarded", "stored", "duplicate", "expired", "erased_again")
STATES = ("open", "redrive", *SETTLED, "parked")
# Of a parked event, until its next try.
_FIRST_WAIT, _LONGEST_WAIT = timedelta(seconds=1), timedelta(hours=1)
_HERE = unsettled_event.c
_PLACE = (*PartitionId._fields, "offset")
UNREADABLE: Final = "unreadable_record"
"""The reason of a Kafka batch that cannot be read: its payload is no event."""
_TROUBLE = ("reason", "detail", "model_id", "inference_id")


@dataclass(frozen=True, slots=True)
class Rejection:
    """The reason that a record is not stored: one of DEAD_LETTER_REASONS, and a sentence."""

    reason: str
    detail: str
    model_id: str | None = None
    inference_id: str | None = None

    @property
    def values(self) -> dict[str, Any]:
        """Its columns."""
        return {
            "reason": self.reason,
            "detail": self.detail[:4096].replace("\0", "\ufffd"),
            "model_id": self.model_id,
            "inference_id": self.inference_id,
        }


@dataclass(frozen=True, slots=True)
class Record:
    """A record of the topic, with all that is needed to read it again."""

    partition_id: PartitionId
    offset: int
    time: datetime
    key: bytes | None
    payload: bytes
    headers: Sequence[tuple[str, str]] = ()
    # its fault as a record, whatever its payload is; not stored
    fault: Rejection | None = None

    @property
    def values(self) -> dict[str, Any]:
        """Its columns."""
        return {
            **self.partition_id.values,
            "offset": self.offset,
            "record_time": self.time,
            "record_key": self.key,
            "payload": self.payload,
            "headers": [list(header) for header in self.headers],
        }


@dataclass(frozen=True, slots=True)
class UnsettledEvent:
    """An event that is not stored."""

    id: int
    record: Record
    rejection: Rejection
    state: str
    missing: str | None
    """The storage key that a parked event waits for."""
    attempts: int
    discard_reason: str | None
    created_at: datetime
    updated_at: datetime
    next_attempt_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Conditions on unsettled events; None: any."""

    kind: Kind | None = None
    state: str | None = None
    reason: str | None = None
    model_id: str | None = None
    created_from: datetime | None = None
    created_to: datetime | None = None
    within: AccessScope = EVERYTHING
    """The scope of their models; an event without a model is only in the scope of everything."""

    def where(self) -> ColumnElement[bool]:
        """Return the conditions in SQL."""
        clause = match_model_ids(self.within, _HERE.model_id)
        if self.kind is not None:
            is_letter = self.kind == "dead letter"
            clause &= _HERE.was_dead if is_letter else _HERE.state == "parked"
        for name in ("state", "reason", "model_id"):
            value = getattr(self, name)
            clause = clause if value is None else clause & (_HERE[name] == value)
        if self.created_from is not None:
            clause &= _HERE.created_at >= self.created_from
        if self.created_to is not None:
            clause &= _HERE.created_at < self.created_to
        return clause


async def add_dead(
    connection: AsyncConnection, letters: Sequence[tuple[Record, Rejection]]
) -> None:
    """Store events that could not be indexed; one that waited for a try is open (again)."""
    rows = [{**record.values, **rejection.values} for record, rejection in letters]
    again = {"state": "open", "attempts": _HERE.attempts + 1, "next_attempt_at": null()}
    waits = (_HERE.state == "redrive") | (_HERE.state == "parked")
    await _set_aside(connection, rows, {"was_dead": True}, again, where=waits)


async def park(
    connection: AsyncConnection, events: Sequence[tuple[Record, Rejection, str]]
) -> None:
    """Park events, each with the storage key that is missing.

    One that is parked already keeps its age and its tries; a redriven dead letter begins anew.
    """
    rows = [
        {**record.values, **rejection.values, "missing": missing}
        for record, rejection, missing in events
    ]
    parked = {"state": "parked", "next_attempt_at": func.now() + _FIRST_WAIT}
    again = {"attempts": 0, "created_at": func.now()}
    await _set_aside(connection, rows, parked, again, where=_HERE.state == "redrive")


async def _set_aside(
    connection: AsyncConnection,
    rows: Sequence[dict[str, Any]],
    values: dict[str, Any],
    again: dict[str, Any],
    *,
    where: ColumnElement[bool],
) -> None:
    """Insert the rows with these values; one that is there gets them too, and those of `again`."""
    if not rows:
        return
    new = upsert(unsettled_event).values(values)
    trouble = {name: new.excluded[name] for name in (*_TROUBLE, "missing") if name in rows[0]}
    changes = {**values, **again, "updated_at": func.now(), **trouble}
    statement = new.on_conflict_do_update(index_elements=_PLACE, set_=changes, where=where)
    await connection.execute(statement, rows)


async def find(
    connection: AsyncConnection, selection: Selection, *, limit: int, before: int | None = None
) -> list[UnsettledEvent]:
    """Return events, the newest first; `before`: the id of the last one of the previous page."""
    query = select(unsettled_event).where(selection.where())
    if before is not None:
        query = query.where(_HERE.id < before)
    rows = await connection.execute(query.order_by(_HERE.id.desc()).limit(limit))
    return [_build_event(row) for row in rows]


async def count_waiting(
    connection: AsyncConnection, model_id: str, states: Sequence[str], *, most: int = 10_000
) -> int:
    """Count a model's events in these states, up to `most`."""
    waiting = select(_HERE.id).where(_HERE.state.in_(states), _HERE.model_id == model_id)
    query = select(func.count()).select_from(waiting.limit(most).subquery())
    return int(await connection.scalar(query) or 0)


async def get(
    connection: AsyncConnection, id: int, kind: Kind, *, within: AccessScope = EVERYTHING
) -> UnsettledEvent:
    """Return an event. Raises NotFound, also if its model is not within the scope."""
    selection = Selection(kind=kind, within=within)
    query = select(unsettled_event).where(_HERE.id == id, selection.where())
    row = (await connection.execute(query)).first()
    if row is None:
        settled = ": it may be stored, or a dead letter" if kind == "parked event" else ""
        raise NotFound(f"there is no {kind} {id}{settled}")
    return _build_event(row)


async def retry(connection: AsyncConnection, selection: Selection) -> int:
    """Let the ingesters try every selected event that is open or parked; return the number. What is
    no event, but a Kafka batch, stays."""
    waits = _HERE.state.in_(("open", "parked")) & (_HERE.reason != UNREADABLE)
    changed = update(unsettled_event).where(selection.where(), waits)
    values = {"updated_at": func.now(), **_due_now()}
    return (await connection.execute(changed.values(values))).rowcount


async def retry_one(connection: AsyncConnection, id: int, kind: Kind) -> UnsettledEvent:
    """Let the ingesters try an event. Raises NotFound, Conflict if it is settled or no event."""
    if (await get(connection, id, kind)).rejection.reason == UNREADABLE:
        raise Conflict("The payload is a Kafka batch, not an event: read it, then discard it.")
    return await _change(connection, id, kind, ("open", "redrive", "parked"), _due_now())


async def discard(connection: AsyncConnection, id: int, kind: Kind, reason: str) -> UnsettledEvent:
    """Decide that an event will never be indexed: it stays listed as a discarded dead letter.

    Raises NotFound, Conflict if it is being tried, or settled otherwise.
    """
    values = {"state": "discarded", "discard_reason": reason, "was_dead": True}
    values["next_attempt_at"] = null()
    event = await get(connection, id, kind)
    if event.state != "parked":
        return await _change(connection, id, kind, ("open", "discarded"), values)
    partition_id = event.record.partition_id
    # the accounting first, as in the ingester: the two cannot deadlock
    await accounting.lock_partitions(connection, {partition_id})
    event = await _change(connection, id, kind, ("parked",), values)
    moved = {Outcome.PARKED: -1, Outcome.DEAD: 1}
    await accounting.change_outcomes(connection, {partition_id: moved})
    return event


def _due_now() -> dict[str, Any]:
    state = case((_HERE.state == "open", "redrive"), else_=_HERE.state)
    return {"state": state, "next_attempt_at": func.now()}


async def _change(
    connection: AsyncConnection, id: int, kind: Kind, allowed: Sequence[str], values: dict[str, Any]
) -> UnsettledEvent:
    changed = await connection.execute(
        update(unsettled_event)
        .where(_HERE.id == id, Selection(kind=kind).where(), _HERE.state.in_(allowed))
        .values(updated_at=func.now(), **values)
        .returning(unsettled_event)
    )
    row = changed.first()
    if row is not None:
        return _build_event(row)
    event = await get(connection, id, kind)
    remedy = f"this is possible only while it is {allowed[0]}"
    raise Conflict(f"The {kind} {id} is {event.state}: {remedy}.")


async def find_due(connection: AsyncConnection, *, limit: int) -> list[UnsettledEvent]:
    """Return the events to try now, the longest waiting first, without a lock."""
    query = select(unsettled_event).where(_HERE.next_attempt_at <= func.now())
    rows = await connection.execute(query.order_by(_HERE.next_attempt_at).limit(limit))
    return [_build_event(row) for row in rows]


async def lock(
    connection: AsyncConnection, events: Sequence[UnsettledEvent]
) -> list[UnsettledEvent]:
    """Lock the events that are still as they were read, except those that another ingester has
    locked; return them."""
    states = {event.id: event.state for event in events}
    query = select(_HERE.id, _HERE.state).where(_HERE.id.in_(sorted(states)))
    rows = await connection.execute(query.with_for_update(skip_locked=True))
    locked = {id for id, state in rows if state == states[id]}
    return [event for event in events if event.id in locked]


async def postpone(connection: AsyncConnection, event: UnsettledEvent) -> None:
    """Schedule the next try of a parked event, after twice as long each time."""
    attempts = event.attempts + 1
    wait: timedelta = min(_FIRST_WAIT * 2 ** min(attempts, 30), _LONGEST_WAIT)
    values = {"attempts": attempts, "next_attempt_at": func.now() + wait}
    await connection.execute(
        update(unsettled_event).where(_HERE.id == event.id).values(updated_at=func.now(), **values)
    )


async def settle(connection: AsyncConnection, id: int, state: str) -> None:
    """Store the result of a try: a dead letter stays listed with it, a parked event goes."""
    await connection.execute(delete(unsettled_event).where(_HERE.id == id, ~_HERE.was_dead))
    values = {"state": state, "attempts": _HERE.attempts + 1, "next_attempt_at": null()}
    await connection.execute(
        update(unsettled_event).where(_HERE.id == id).values(updated_at=func.now(), **values)
    )


async def count_quarantined(connection: AsyncConnection, window: timedelta) -> tuple[int, int]:
    """Count events quarantined within a window, and all events read since the first of them.

    It counts over all partitions and ingesters; the accounting has the position of each.
    """
    places = [_HERE[name] for name in PartitionId._fields]
    count, first = func.count().label("count"), func.min(_HERE.offset).label("first")
    counts = (
        select(*places, count, first)
        .where(_HERE.created_at >= func.now() - window)
        .group_by(*places)
        .subquery()
    )
    here = and_(*(kafka_partition.c[name] == counts.c[name] for name in PartitionId._fields))
    # Offsets quarantined in this very transaction are still beyond `next`.
    read = func.greatest(kafka_partition.c.next - counts.c.first, 0)
    query = select(
        func.coalesce(func.sum(counts.c.count), 0), func.coalesce(func.sum(read), 0)
    ).join_from(counts, kafka_partition, here)
    quarantined, events = (await connection.execute(query)).one()
    return int(quarantined), int(events)


async def lift_limit(connection: AsyncConnection, for_how_long: timedelta) -> datetime:
    """Let ingesters quarantine events without limit for a while; return its end.

    It replaces an earlier end.
    """
    until = func.now() + for_how_long
    write = upsert(dead_letter_limit_lift).values(id=1, lifted_until=until)
    write = write.on_conflict_do_update(index_elements=["id"], set_={"lifted_until": until})
    returned = await connection.execute(write.returning(dead_letter_limit_lift.c.lifted_until))
    return cast(datetime, returned.scalar_one())


async def limit_is_lifted(connection: AsyncConnection) -> bool:
    """Check whether the limit is still lifted."""
    query = select(dead_letter_limit_lift.c.lifted_until > func.now())
    return bool((await connection.execute(query)).scalar())


def record_of(row: Any) -> Record:
    """Build a Record from a row."""
    return Record(
        partition_id=PartitionId.of(row),
        offset=row.offset,
        time=row.record_time,
        key=row.record_key,
        payload=row.payload or b"",
        headers=tuple((name, value) for name, value in row.headers),
    )


def _build_event(row: Any) -> UnsettledEvent:
    rejection = Rejection(*(row._mapping[name] for name in _TROUBLE))
    own = {name: row._mapping[name] for name in UnsettledEvent.__slots__ if name in _HERE}
    return UnsettledEvent(record=record_of(row), rejection=rejection, **own)
