"""Holds, as they are read: one, a list, and the history of one."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, and_, func, or_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.access import EVERYTHING, Reach
from inference_store.index.tables import hold, hold_change
from inference_store.index.within_reach import match_models

from .hold import Hold, State, hold_of, is_in_force


@dataclass(frozen=True, slots=True)
class Change:
    """One revision of a hold: what it was from then on, and who made it so."""

    revision: int
    change: str
    at: datetime
    actor: str
    document: Mapping[str, Any]


async def find(
    connection: AsyncConnection, id: UUID, *, within: Reach = EVERYTHING, lock: bool = False
) -> Hold | None:
    """One hold, if its model is within reach; a hold of every model needs the reach of all."""
    query = select(hold).where(hold.c.id == id, _within(within))
    row = (await connection.execute(query.with_for_update() if lock else query)).first()
    return None if row is None else hold_of(row)


async def listed(
    connection: AsyncConnection,
    *,
    state: State | None = None,
    model: int | None = None,
    before: tuple[datetime, UUID] | None = None,
    limit: int = 100,
    within: Reach = EVERYTHING,
) -> list[Hold]:
    """The newest first; of a `model`: those that may keep something of it.

    `before`: (placed_at, id) of the last one of a page.
    """
    query = select(hold).where(_within(within))
    if state is not None:
        query = query.where(_states()[state])
    if model is not None:
        query = query.where(or_(hold.c.model.is_(None), hold.c.model == model))
    if before is not None:
        at, id = before
        here = hold.c
        query = query.where((here.placed_at < at) | ((here.placed_at == at) & (here.id < id)))
    query = query.order_by(hold.c.placed_at.desc(), hold.c.id.desc()).limit(limit)
    return [hold_of(row) for row in await connection.execute(query)]


async def history(
    connection: AsyncConnection, id: UUID, *, after: int = 0, limit: int = 1000
) -> list[Change]:
    """The revisions of a hold behind `after`, the oldest first."""
    here = hold_change.c
    query = select(here.revision, here.change, here.at, here.actor, here.document)
    query = query.where(here.hold == id, here.revision > after).order_by(here.revision)
    rows = await connection.execute(query.limit(limit))
    return [Change(**row._mapping) for row in rows]


def _states() -> Mapping[State, ColumnElement[bool]]:
    here = hold.c
    return {
        "in_force": is_in_force(),
        "ended": and_(here.released_at.is_(None), here.until <= func.now()),
        "released": here.released_at.is_not(None),
    }


def _within(reach: Reach) -> ColumnElement[bool]:
    return match_models(reach, hold.c.model)
