"""The audit: who did what, when, and from where, for every change and every read of an input.

The row of a change is written in the change's own transaction; that of a read is committed
before the first byte is sent.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from typing import Any
from uuid import UUID

from sqlalchemy import (
    ColumnElement,
    Text,
    and_,
    any_,
    bindparam,
    cast,
    func,
    insert,
    or_,
    select,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.dialects.postgresql import UUID as UUID_TYPE
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.access import EVERYTHING, AccessScope, Action, Who
from inference_store.index.registrations import match_models
from inference_store.inference.field_docs import Stored

from .prepared_statement import PreparedStatement
from .tables import audit


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Conditions on entries; None: any. Times are half-open."""

    actor: str | None = None
    action: Action | None = None
    model_id: str | None = None
    uid: UUID | None = None
    at_from: datetime | None = None
    at_to: datetime | None = None
    within: AccessScope = field(default=EVERYTHING)


class AuditEntry(Stored):
    """One thing that was done."""

    id: int
    at: datetime
    actor: str
    client: str | None
    """The address that it came from; null: the command line."""
    action: str
    model_id: str | None
    uid: UUID | None
    detail: dict[str, Any]
    number: int | None
    """Its place in the chain; null for the moment until it has one."""
    taken_by: int | None
    """The entry that says which erasure took `uid` and `detail`; null: none did."""


async def note(
    connection: AsyncConnection,
    who: Who,
    action: Action,
    *,
    model: tuple[int | None, str] | None = None,
    uids: Sequence[UUID] = (),
    at: datetime | None = None,
    **detail: Any,
) -> None:
    """Write an entry for each inference about an action on a model (integer and id).

    `at`: the time of the action, if that is not now.
    """
    number, model_id = model or (None, None)
    entry = {
        "actor": who.actor,
        "client": who.client,
        "action": action.value,
        "model": number,
        "model_id": model_id,
        "detail": detail,
        "at": at,
        "uids": uids or (None,),
    }
    await _noting().fetch(connection, entry)


@cache
def _noting() -> PreparedStatement:
    here = audit.c
    columns = (here.actor, here.client, here.action, here.model, here.model_id, here.detail)
    values = [bindparam(column.name, type_=column.type) for column in columns]
    at = func.coalesce(bindparam("at", type_=here.at.type), func.now())
    uids = func.unnest(bindparam("uids", type_=ARRAY(UUID_TYPE(as_uuid=True))))
    names = [*(column.name for column in columns), "at", "uid"]
    return PreparedStatement(insert(audit).from_select(names, select(*values, at, uids)))


async def listed(
    connection: AsyncConnection, chosen: Filter, *, limit: int, before: int | None = None
) -> list[AuditEntry]:
    """Return entries, the newest first; `before`: the id of the last one of the previous page."""
    here = audit.c
    query = select(audit).where(match_models(chosen.within, here.model)).order_by(here.id.desc())
    if chosen.uid is not None:
        query = query.where(match_uids([chosen.uid]))
    for name in ("actor", "action", "model_id"):
        if (value := getattr(chosen, name)) is not None:
            query = query.where(here[name] == value)
    if chosen.at_from is not None:
        query = query.where(here.at >= chosen.at_from)
    if chosen.at_to is not None:
        query = query.where(here.at < chosen.at_to)
    if before is not None:
        query = query.where(here.id < before)
    return [AuditEntry.model_validate(row) for row in await connection.execute(query.limit(limit))]


def match_uids(uids: Collection[UUID]) -> ColumnElement[bool]:
    """Match the entries about any of these inferences, alone or among others."""
    is_about_one = audit.c.uid == any_(cast(list(uids), ARRAY(UUID_TYPE(as_uuid=True))))
    # a literal: the index is for this action alone
    several = text("action = 'thumbnails_read'")
    listed = audit.c.detail["inferences"].has_any(cast([str(uid) for uid in uids], ARRAY(Text())))
    return or_(is_about_one, and_(several, listed))
