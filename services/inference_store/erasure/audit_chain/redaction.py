"""Removes an erasure's values from entries. Who did what when stays, and the chain stays valid."""

from collections.abc import Collection, Sequence
from typing import Any, Final
from uuid import UUID

from sqlalchemy import ColumnElement, func, insert, literal, select, update
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.access.audit import Action
from inference_store.index.audit import match_uids
from inference_store.index.tables import audit, audit_link

from .mentions import mentions as mentioned

ACTOR: Final = "retention"
_PAGE = 10_000


async def redact_values(
    connection: AsyncConnection, erasure: UUID, *, uids: Collection[UUID]
) -> int:
    """Remove `uid` and `detail` from every entry about these inferences; return how many.

    In the erasure's own transaction; repeatable. An entry of its own lists the redacted ones:
    values that are gone without being listed are a failure of the chain.
    """
    redacted = 0
    while uids and (entries := await _find_about(connection, uids)):
        redacted += await _redact(connection, erasure, entries)
    return redacted


async def redact_mentions(
    connection: AsyncConnection,
    erasure: UUID,
    subject: tuple[str, str],
    is_in_reach: ColumnElement[bool],
    *,
    after: int,
    limit: int,
) -> tuple[int, int | None]:
    """Redact the entries in reach whose detail mentions a subject (its key and value), in the
    `limit` entries after `after`.

    Return how many, and the last entry that was read; None if none is left. An erasure reads all
    entries in its reach once, each page in a transaction of its own.
    """
    page = await _read_page(connection, is_in_reach, after, limit)
    if not page:
        return 0, None
    entries = [row.id for row in page if mentioned(row.detail, *subject)]
    redacted = await _redact(connection, erasure, await _lock(connection, entries))
    return redacted, page[-1].id


async def _redact(connection: AsyncConnection, erasure: UUID, entries: Sequence[int]) -> int:
    if not entries:
        return 0
    values = {"actor": ACTOR, "action": Action.AUDIT_VALUES_TAKEN.value}
    detail = {"erasure": str(erasure), "entries": entries}
    inserted = insert(audit).values(**values, detail=detail).returning(audit.c.id)
    by = (await connection.execute(inserted)).scalar_one()
    of_entries = update(audit).where(audit.c.id == func.any(entries))
    await connection.execute(of_entries.values(uid=None, detail={}, taken_by=by))
    of_links = update(audit_link).where(audit_link.c.entry == func.any(entries))
    await connection.execute(of_links.values(salt=None))
    return len(entries)


async def _find_about(connection: AsyncConnection, uids: Collection[UUID]) -> list[int]:
    query = (
        select(audit.c.id).where(_redactable(), match_uids(uids)).order_by(audit.c.id).limit(_PAGE)
    )
    return list((await connection.execute(query.with_for_update())).scalars())


async def _lock(connection: AsyncConnection, entries: Sequence[int]) -> list[int]:
    """Lock entries, and return those that nobody else has redacted meanwhile."""
    if not entries:
        return []
    query = (
        select(audit.c.id)
        .where(_redactable(), audit.c.id == func.any(entries))
        .order_by(audit.c.id)
    )
    return list((await connection.execute(query.with_for_update())).scalars())


async def _read_page(
    connection: AsyncConnection, is_in_reach: ColumnElement[bool], after: int, limit: int
) -> Sequence[Any]:
    """Return the next entries in reach that have a detail."""
    has_detail = audit.c.detail != literal({}, JSONB)
    query = select(audit.c.id, audit.c.detail).where(_redactable(), audit.c.id > after, has_detail)
    query = query.where(is_in_reach)
    return (await connection.execute(query.order_by(audit.c.id).limit(limit))).all()


def _redactable() -> ColumnElement[bool]:
    """Entries that are neither redacted nor a list of redacted ones."""
    return audit.c.taken_by.is_(None) & (audit.c.action != Action.AUDIT_VALUES_TAKEN.value)
