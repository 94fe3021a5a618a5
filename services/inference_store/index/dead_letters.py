"""Dead letters: events that could not be indexed, kept with the reason until someone decides."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Select, func, select, update
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.access import EVERYTHING, Reach
from inference_store.inference.errors import Conflict, NotFound

from .records import Record, Trouble, record_of
from .tables import dead_letter
from .within_reach import match_model_ids

# 'redrive' is asked for and not yet done; 'stored' and the like are what a redrive made of it.
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
# Nobody has to decide about these any more.
SETTLED = ("discarded", "stored", "duplicate", "expired", "erased_again")
_PLACE = ("cluster", "topic", "epoch", "partition", "offset")
_TROUBLE = ("reason", "detail", "model_id", "inference_id")


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One event that could not be indexed."""

    id: int
    record: Record
    trouble: Trouble
    state: str
    attempts: int
    discard_reason: str | None
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which dead letters; what is None does not narrow."""

    state: str | None = None
    reason: str | None = None
    model_id: str | None = None
    created_from: datetime | None = None
    created_to: datetime | None = None
    within: Reach = EVERYTHING
    """Those of models in it; what names no model is in everything alone."""

    def where(self) -> ColumnElement[bool]:
        """As SQL."""
        table = dead_letter.c
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
        trouble=Trouble(row.reason, row.detail, row.model_id, row.inference_id),
        state=row.state,
        attempts=row.attempts,
        discard_reason=row.discard_reason,
        created_at=row.created_at,
        updated_at=row.updated_at,
    )


async def add(connection: AsyncConnection, letters: Sequence[tuple[Record, Trouble]]) -> None:
    """Keep events that could not be indexed; one that is kept already stays as it is.

    Except one that a redrive had parked: its blob never came, so that it is open again.
    """
    if letters:
        rows = [{**record.values, **trouble.values} for record, trouble in letters]
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
    """The newest first; `before` is the id of the last one of the page before."""
    query = select(dead_letter).where(selection.where())
    if before is not None:
        query = query.where(dead_letter.c.id < before)
    rows = await connection.execute(query.order_by(dead_letter.c.id.desc()).limit(limit))
    return [_letter(row) for row in rows]


async def get(connection: AsyncConnection, id: int, *, within: Reach = EVERYTHING) -> DeadLetter:
    """One dead letter. Raises NotFound, also where its model is not within reach."""
    query = select(dead_letter).where(dead_letter.c.id == id)
    row = (
        await connection.execute(query.where(match_model_ids(within, dead_letter.c.model_id)))
    ).first()
    if row is None:
        raise NotFound(f"there is no dead letter {id}")
    return _letter(row)


async def redrive(connection: AsyncConnection, selection: Selection) -> int:
    """Ask the ingesters to try every selected one that is open again; how many."""
    asked = await connection.execute(
        update(dead_letter)
        .where(selection.where(), dead_letter.c.state == "open")
        .values(state="redrive", updated_at=func.now())
    )
    return asked.rowcount


async def redrive_one(connection: AsyncConnection, id: int) -> DeadLetter:
    """Ask the ingesters to try one again. Raises NotFound, Conflict where it is not open."""
    return await _change(connection, id, {"state": "redrive"}, wanted=("open", "redrive"))


async def discard(connection: AsyncConnection, id: int, reason: str) -> DeadLetter:
    """Decide that one will never be indexed; it stays listed, with the reason.

    Raises NotFound, Conflict where it is not open.
    """
    values = {"state": "discarded", "discard_reason": reason}
    return await _change(connection, id, values, wanted=("open", "discarded"))


async def _change(
    connection: AsyncConnection, id: int, values: dict[str, Any], *, wanted: Sequence[str]
) -> DeadLetter:
    changed = await connection.execute(
        update(dead_letter)
        .where(dead_letter.c.id == id, dead_letter.c.state.in_(wanted))
        .values(updated_at=func.now(), **values)
        .returning(dead_letter)
    )
    row = changed.first()
    if row is not None:
        return _letter(row)
    found = await get(connection, id)
    raise Conflict(f"dead letter {id} is {found.state}, not {wanted[0]}")


def due(*, limit: int) -> Select[Any]:
    """Those to be redriven, oldest first."""
    query = select(dead_letter).where(dead_letter.c.state == "redrive")
    return query.order_by(dead_letter.c.id).limit(limit)


async def to_redrive(connection: AsyncConnection, *, limit: int) -> list[DeadLetter]:
    """Those to be redriven, oldest first; not locked."""
    return [_letter(row) for row in await connection.execute(due(limit=limit))]


async def lock(connection: AsyncConnection, ids: Iterable[int]) -> set[int]:
    """Lock those still to be redriven; what another ingester has is left to it."""
    query = select(dead_letter.c.id).where(
        dead_letter.c.id.in_(sorted(ids)), dead_letter.c.state == "redrive"
    )
    rows = await connection.execute(query.with_for_update(skip_locked=True))
    return set(rows.scalars())


async def settle(connection: AsyncConnection, id: int, state: str) -> None:
    """Write what a redrive made of a dead letter."""
    await connection.execute(
        update(dead_letter)
        .where(dead_letter.c.id == id)
        .values(state=state, attempts=dead_letter.c.attempts + 1, updated_at=func.now())
    )


async def settle_parked(connection: AsyncConnection, record: Record, state: str) -> None:
    """An event is parked no longer: the dead letter that it was before, if it was one, says so."""
    here = (dead_letter.c[name] == value for name, value in record.values.items() if name in _PLACE)
    await connection.execute(
        update(dead_letter)
        .where(*here, dead_letter.c.state == "parked")
        .values(state=state, updated_at=func.now())
    )


async def reopen(connection: AsyncConnection, id: int, trouble: Trouble) -> None:
    """A redrive failed: open again, with the reason of today."""
    await connection.execute(
        update(dead_letter)
        .where(dead_letter.c.id == id)
        .values(
            state="open",
            attempts=dead_letter.c.attempts + 1,
            updated_at=func.now(),
            **trouble.values,
        )
    )
