"""Taking values out of entries: an erasure's. Who did what when stays, and the chain closes."""

from collections.abc import Collection, Sequence
from typing import Any, Final
from uuid import UUID

from sqlalchemy import ColumnElement, cast, func, insert, literal, select, update
from sqlalchemy.dialects.postgresql import ARRAY, JSONB
from sqlalchemy.dialects.postgresql import UUID as PG_UUID
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.access.audit import Action
from inference_store.index.tables import audit, audit_link

from .mentioning import mentions as mentioned

ACTOR: Final = "retention"
_AT_ONCE = 10_000


async def forget(connection: AsyncConnection, erasure: UUID, *, uids: Collection[UUID]) -> int:
    """Take `uid` and `detail` out of every entry about these inferences; of how many.

    In the erasure's own transaction; repeatable. An entry of its own lists those it took from:
    values that are gone without one are a fault of the chain.
    """
    taken = 0
    while uids and (found := await _about(connection, uids)):
        taken += await _take(connection, erasure, found)
    return taken


async def forget_mentions(
    connection: AsyncConnection, erasure: UUID, key: str, value: str, *, after: int, limit: int
) -> tuple[int, int | None]:
    """As `forget`, of entries whose detail mentions a subject's key and value: looks at `limit`
    entries behind `after`. Of how many, and the last that was looked at; None: there are none
    left. The whole audit is read, once an erasure: each page in a transaction of its own."""
    page = await _page(connection, after, limit)
    if not page:
        return 0, None
    found = [row.id for row in page if mentioned(row.detail, key, value)]
    taken = await _take(connection, erasure, await _locked(connection, found))
    return taken, page[-1].id


async def _take(connection: AsyncConnection, erasure: UUID, found: Sequence[int]) -> int:
    if not found:
        return 0
    said = {"actor": ACTOR, "action": Action.AUDIT_VALUES_TAKEN.value}
    detail = {"erasure": str(erasure), "entries": found}
    made = insert(audit).values(**said, detail=detail).returning(audit.c.id)
    by = (await connection.execute(made)).scalar_one()
    of_entries = update(audit).where(audit.c.id == func.any(found))
    await connection.execute(of_entries.values(uid=None, detail={}, taken_by=by))
    of_links = update(audit_link).where(audit_link.c.entry == func.any(found))
    await connection.execute(of_links.values(salt=None))
    return len(found)


async def _about(connection: AsyncConnection, uids: Collection[UUID]) -> list[int]:
    these = audit.c.uid == func.any(cast(list(uids), ARRAY(PG_UUID(as_uuid=True))))
    query = select(audit.c.id).where(_whole(), these).order_by(audit.c.id).limit(_AT_ONCE)
    return list((await connection.execute(query.with_for_update())).scalars())


async def _locked(connection: AsyncConnection, found: Sequence[int]) -> list[int]:
    """Those that another has not taken meanwhile."""
    if not found:
        return []
    query = select(audit.c.id).where(_whole(), audit.c.id == func.any(found)).order_by(audit.c.id)
    return list((await connection.execute(query.with_for_update())).scalars())


async def _page(connection: AsyncConnection, after: int, limit: int) -> Sequence[Any]:
    """The next entries that say anything."""
    says = audit.c.detail != literal({}, JSONB)
    query = select(audit.c.id, audit.c.detail).where(_whole(), audit.c.id > after, says)
    return (await connection.execute(query.order_by(audit.c.id).limit(limit))).all()


def _whole() -> ColumnElement[bool]:
    """What an erasure took cannot be taken from what says so."""
    return audit.c.taken_by.is_(None) & (audit.c.action != Action.AUDIT_VALUES_TAKEN.value)
