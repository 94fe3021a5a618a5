"""Legal holds as they are stored: one, a list, and the revisions of one."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any, Final, Literal
from uuid import UUID

from sqlalchemy import ColumnElement, and_, func, or_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.access import EVERYTHING, AccessScope
from inference_store.index.scope_filters import match_models
from inference_store.index.tables import hold, hold_change

State = Literal["in_force", "ended", "released"]
ERASED: Final = "erased"
"""What replaces a value that an erasure removed, before its keyed hash."""


@dataclass(frozen=True, slots=True)
class Hold:
    """A legal hold: what it protects, why and until when, and who placed and released it.

    `model` None: every model, also those to come. `filter`: in the form of `filters.saved`.
    """

    id: UUID
    name: str
    reason: str
    model: int | None
    filter: str
    inference_ids: tuple[str, ...] | None
    until: datetime | None
    placed_by: str
    placed_at: datetime
    in_force_at: datetime
    released_by: str | None
    released_at: datetime | None
    release_reason: str | None
    revision: int

    @property
    def is_redacted(self) -> bool:
        """Check whether an erasure removed its filter."""
        return self.filter.startswith(ERASED)

    def state(self, now: datetime) -> State:
        """Return whether it protects anything: until it is released, or `until` has passed."""
        if self.released_at is not None:
            return "released"
        return "ended" if self.until is not None and self.until <= now else "in_force"


def read_hold(row: Any) -> Hold:
    """Return the Hold of a row of the table."""
    values = {field.name: getattr(row, field.name) for field in fields(Hold)}
    ids = values["inference_ids"]
    return Hold(**values | {"inference_ids": None if ids is None else tuple(ids)})


def is_in_force() -> ColumnElement[bool]:
    """Return the condition of the holds that protect something now."""
    here = hold.c
    return and_(here.released_at.is_(None), or_(here.until.is_(None), here.until > func.now()))


@dataclass(frozen=True, slots=True)
class HoldRevision:
    """One revision of a hold: what it was from then on, and who made the change."""

    revision: int
    change: Literal["placed", "changed", "released"]
    at: datetime
    actor: str
    document: Mapping[str, Any]


async def find_hold(
    connection: AsyncConnection, id: UUID, *, within: AccessScope = EVERYTHING, lock: bool = False
) -> Hold | None:
    """Return a hold, if its model is within the scope; a hold of every model needs the scope of
    all."""
    query = select(hold).where(hold.c.id == id, _match_scope(within))
    row = (await connection.execute(query.with_for_update() if lock else query)).first()
    return None if row is None else read_hold(row)


async def list_holds(
    connection: AsyncConnection,
    *,
    state: State | None = None,
    model: int | None = None,
    before: tuple[datetime, UUID] | None = None,
    limit: int = 100,
    within: AccessScope = EVERYTHING,
) -> list[Hold]:
    """Return holds, the newest first; of a `model`: those that may protect something of it.

    `before`: (placed_at, id) of the last one of a page.
    """
    query = select(hold).where(_match_scope(within))
    if state is not None:
        query = query.where(_build_state_conditions()[state])
    if model is not None:
        query = query.where(or_(hold.c.model.is_(None), hold.c.model == model))
    if before is not None:
        at, id = before
        here = hold.c
        query = query.where((here.placed_at < at) | ((here.placed_at == at) & (here.id < id)))
    query = query.order_by(hold.c.placed_at.desc(), hold.c.id.desc()).limit(limit)
    return [read_hold(row) for row in await connection.execute(query)]


async def list_revisions(
    connection: AsyncConnection, id: UUID, *, after: int = 0, limit: int = 1000
) -> list[HoldRevision]:
    """Return the revisions of a hold after `after`, the oldest first."""
    here = hold_change.c
    query = select(here.revision, here.change, here.at, here.actor, here.document)
    query = query.where(here.hold == id, here.revision > after).order_by(here.revision)
    rows = await connection.execute(query.limit(limit))
    return [HoldRevision(**row._mapping) for row in rows]


def _build_state_conditions() -> Mapping[State, ColumnElement[bool]]:
    here = hold.c
    return {
        "in_force": is_in_force(),
        "ended": and_(here.released_at.is_(None), here.until <= func.now()),
        "released": here.released_at.is_not(None),
    }


def _match_scope(scope: AccessScope) -> ColumnElement[bool]:
    return match_models(scope, hold.c.model)
