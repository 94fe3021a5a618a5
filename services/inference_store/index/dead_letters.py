"""Dead letters: events that could not be indexed, stored with the reason until someone decides."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Select, Table, and_, func, select, update
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.access import EVERYTHING, AccessScope
from inference_store.inference.errors import Conflict, NotFound

from .records import Record, Rejection, record_of
from .scope_filters import match_model_ids
from .tables import dead_letter

# 'redrive' is requested and not yet done; 'stored' and the like are results of a redrive.
STATES = (
    "open",
    "redrive",
    "discarded",
    "stored",
    "duplicate",
    "expired",
    "erased_again",
    "parked",
)
# Nobody has to decide about these.
SETTLED = ("discarded", "stored", "duplicate", "expired", "erased_again")
_PLACE = ("cluster", "topic", "epoch", "partition", "offset")
_TROUBLE = ("reason", "detail", "model_id", "inference_id")


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One event that could not be indexed."""

    id: int
    record: Record
    rejection: Rejection
    state: str
    attempts: int
    discard_reason: str | None
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Conditions on dead letters, or on parked events, which have no state; None: any."""

    state: str | None = None
    reason: str | None = None
    model_id: str | None = None
    created_from: datetime | None = None
    created_to: datetime | None = None
    within: AccessScope = EVERYTHING
    """The scope of their models; a letter without a model is only in the scope of everything."""

    def where(self, of: Table = dead_letter) -> ColumnElement[bool]:
        """Return the conditions in SQL."""
        table = of.c
        clause = match_model_ids(self.within, table.model_id)
        for name in ("state", "reason", "model_id"):
            value = getattr(self, name)
            clause = clause if value is None else clause & (table[name] == value)
        if self.created_from is not None:
            clause &= table.created_at >= self.created_from
        if self.created_to is not None:
            clause &= table.created_at < self.created_to
        return clause


def _letter(row: Any) -> DeadLetter:
    return DeadLetter(
        id=row.id,
        record=record_of(row),
        rejection=Rejection(row.reason, row.detail, row.model_id, row.inference_id),
        state=row.state,
        attempts=row.attempts,
        discard_reason=row.discard_reason,
        created_at=row.created_at,
        updated_at=row.updated_at,
    )


async def add(connection: AsyncConnection, letters: Sequence[tuple[Record, Rejection]]) -> None:
    """Store events that could not be indexed; one that is stored already stays as it is.

    But one that a redrive had parked is open again: its blob never came.
    """
    if letters:
        rows = [{**record.values, **rejection.values} for record, rejection in letters]
        new = upsert(dead_letter)
        statement = new.on_conflict_do_update(
            index_elements=_PLACE,
            set_={
                "state": "open",
                "updated_at": func.now(),
                **{name: new.excluded[name] for name in _TROUBLE},
            },
            where=dead_letter.c.state == "parked",
        )
        await connection.execute(statement, rows)


async def find(
    connection: AsyncConnection, selection: Selection, *, limit: int, before: int | None = None
) -> list[DeadLetter]:
    """Return letters, the newest first; `before`: the id of the last one of the previous page."""
    query = select(dead_letter).where(selection.where())
    if before is not None:
        query = query.where(dead_letter.c.id < before)
    rows = await connection.execute(query.order_by(dead_letter.c.id.desc()).limit(limit))
    return [_letter(row) for row in rows]


async def get(
    connection: AsyncConnection, id: int, *, within: AccessScope = EVERYTHING
) -> DeadLetter:
    """Return a dead letter. Raises NotFound, also if its model is not within the scope."""
    query = select(dead_letter).where(dead_letter.c.id == id)
    row = (
        await connection.execute(query.where(match_model_ids(within, dead_letter.c.model_id)))
    ).first()
    if row is None:
        raise NotFound(f"there is no dead letter {id}")
    return _letter(row)


async def redrive(connection: AsyncConnection, selection: Selection) -> int:
    """Ask the ingesters to retry every selected open letter; return the number."""
    result = await connection.execute(
        update(dead_letter)
        .where(selection.where(), dead_letter.c.state == "open")
        .values(state="redrive", updated_at=func.now())
    )
    return result.rowcount


async def redrive_one(connection: AsyncConnection, id: int) -> DeadLetter:
    """Ask the ingesters to retry a letter. Raises NotFound, Conflict if it is not open."""
    return await _change(connection, id, {"state": "redrive"}, allowed_states=("open", "redrive"))


async def discard(connection: AsyncConnection, id: int, reason: str) -> DeadLetter:
    """Decide that a letter will never be indexed; it stays listed, with the reason.

    Raises NotFound, Conflict if it is not open.
    """
    values = {"state": "discarded", "discard_reason": reason}
    return await _change(connection, id, values, allowed_states=("open", "discarded"))


async def _change(
    connection: AsyncConnection, id: int, values: dict[str, Any], *, allowed_states: Sequence[str]
) -> DeadLetter:
    changed = await connection.execute(
        update(dead_letter)
        .where(dead_letter.c.id == id, dead_letter.c.state.in_(allowed_states))
        .values(updated_at=func.now(), **values)
        .returning(dead_letter)
    )
    row = changed.first()
    if row is not None:
        return _letter(row)
    letter = await get(connection, id)
    raise Conflict(f"dead letter {id} is {letter.state}, not {allowed_states[0]}")


def due(*, limit: int) -> Select[Any]:
    """Select the letters to redrive, the oldest first."""
    query = select(dead_letter).where(dead_letter.c.state == "redrive")
    return query.order_by(dead_letter.c.id).limit(limit)


async def to_redrive(connection: AsyncConnection, *, limit: int) -> list[DeadLetter]:
    """Return the letters to redrive, the oldest first, without a lock."""
    return [_letter(row) for row in await connection.execute(due(limit=limit))]


async def lock(connection: AsyncConnection, ids: Iterable[int]) -> set[int]:
    """Lock letters still to be redriven, except those that another ingester has locked."""
    query = select(dead_letter.c.id).where(
        dead_letter.c.id.in_(sorted(ids)), dead_letter.c.state == "redrive"
    )
    rows = await connection.execute(query.with_for_update(skip_locked=True))
    return set(rows.scalars())


async def settle(connection: AsyncConnection, id: int, state: str) -> None:
    """Store the result of a redrive."""
    await connection.execute(
        update(dead_letter)
        .where(dead_letter.c.id == id)
        .values(state=state, attempts=dead_letter.c.attempts + 1, updated_at=func.now())
    )


async def settle_parked(connection: AsyncConnection, record: Record, state: str) -> None:
    """Store the state of an event that is no longer parked in its dead letter, if it has one."""
    await connection.execute(
        update(dead_letter)
        .where(_is_of(record), dead_letter.c.state == "parked")
        .values(state=state, updated_at=func.now())
    )


async def discard_parked(
    connection: AsyncConnection, record: Record, rejection: Rejection, reason: str
) -> DeadLetter:
    """Make a discarded letter of an event that is no longer parked."""
    await add(connection, [(record, rejection)])
    id = (await connection.execute(select(dead_letter.c.id).where(_is_of(record)))).scalar_one()
    return await discard(connection, id, reason)


def _is_of(record: Record) -> ColumnElement[bool]:
    return and_(*(dead_letter.c[name] == record.values[name] for name in _PLACE))


async def reopen(connection: AsyncConnection, id: int, rejection: Rejection) -> None:
    """Open a letter again, with the new reason, after a redrive failed."""
    await connection.execute(
        update(dead_letter)
        .where(dead_letter.c.id == id)
        .values(
            state="open",
            attempts=dead_letter.c.attempts + 1,
            updated_at=func.now(),
            **rejection.values,
        )
    )
