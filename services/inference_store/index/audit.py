"""The audit: who, when, from where, what. Of every change, and of every read of an input.

The row of a change is written in the change's own transaction; that of a read is committed
before the first byte goes out.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from functools import cache
from typing import Any
from uuid import UUID

from sqlalchemy import bindparam, func, insert, select
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.dialects.postgresql import UUID as UUID_TYPE
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.access import EVERYTHING, Action, Reach, Who

from .prepared import Prepared
from .tables import audit
from .within_reach import match_models


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Which entries; what is None does not narrow. Times are half-open."""

    actor: str | None = None
    action: Action | None = None
    model_id: str | None = None
    uid: UUID | None = None
    since: datetime | None = None
    until: datetime | None = None
    within: Reach = field(default=EVERYTHING)


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing that was done."""

    id: int
    at: datetime
    actor: str
    client: str | None
    action: str
    model_id: str | None
    uid: UUID | None
    detail: dict[str, Any]
    number: int | None
    """Its place in the chain; None for the moment until it has one."""
    taken_by: int | None
    """The entry that says which erasure took `uid` and `detail`."""


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
    """Write that something was done to a model (integer and id), an entry for each inference;
    `at`: when it was, where that is not now."""
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
def _noting() -> Prepared:
    """An entry for each of `uids`, in their order."""
    here = audit.c
    columns = (here.actor, here.client, here.action, here.model, here.model_id, here.detail)
    values = [bindparam(each.name, type_=each.type) for each in columns]
    at = func.coalesce(bindparam("at", type_=here.at.type), func.now())
    uids = func.unnest(bindparam("uids", type_=ARRAY(UUID_TYPE(as_uuid=True))))
    names = [*(each.name for each in columns), "at", "uid"]
    return Prepared(insert(audit).from_select(names, select(*values, at, uids)))


async def listed(
    connection: AsyncConnection, chosen: Filter, *, limit: int, before: int | None = None
) -> list[Entry]:
    """The newest first; `before` is the id of the last one of the page before."""
    here = audit.c
    query = select(audit).where(match_models(chosen.within, here.model)).order_by(here.id.desc())
    for name in ("actor", "action", "model_id", "uid"):
        if (value := getattr(chosen, name)) is not None:
            query = query.where(here[name] == value)
    if chosen.since is not None:
        query = query.where(here.at >= chosen.since)
    if chosen.until is not None:
        query = query.where(here.at < chosen.until)
    if before is not None:
        query = query.where(here.id < before)
    return [_entry(row) for row in await connection.execute(query.limit(limit))]


def _entry(row: Any) -> Entry:
    return Entry(**{each.name: getattr(row, each.name) for each in fields(Entry)})
