"""Where the chain stood, and where retention has cut it: signed, where there is a key."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Literal

from sqlalchemy import delete, func, insert, select, text, update
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.store.tables import audit, audit_checkpoint, audit_head, audit_link

Reason = Literal["cut", "head"]
# Answers the document with its signature, as it is kept; None: there is no key.
Sign = Callable[[dict[str, Any]], dict[str, Any] | None]


def unsigned(_: dict[str, Any]) -> None:
    """Where there is no key: the hash alone."""


async def checkpoint(
    connection: AsyncConnection, *, every_seconds: float = 0.0, sign: Sign = unsigned
) -> int | None:
    """Note where the chain stands; its number. None: it stands where it was noted last, or that
    is not so long ago."""
    head = (await connection.execute(select(audit_head).with_for_update())).one()
    newest = func.now() - func.make_interval(0, 0, 0, 0, 0, 0, every_seconds)
    columns = func.max(audit_checkpoint.c.number), func.max(audit_checkpoint.c.at) > newest
    noted, recent = (await connection.execute(select(*columns))).one()
    if recent or head.number == (noted or 0):
        return None
    await _note(connection, "head", head.number, head.hash, sign)
    return int(head.number)


async def prune(
    connection: AsyncConnection, *, older_than_seconds: float, limit: int, sign: Sign = unsigned
) -> int:
    """Cut off the oldest entries that are older than this, at most `limit`; how many.

    A checkpoint keeps the hash of the last one that went, so that what stays can be verified. An
    entry without a place in the chain stays until it has one.
    """
    head = (await connection.execute(select(audit_head).with_for_update())).one()
    last = await connection.scalar(_last_old(head.cut, older_than_seconds, limit))
    if last is None:
        return 0
    hash = await connection.scalar(select(audit_link.c.hash).where(audit_link.c.number == last))
    await connection.execute(text("SET LOCAL inference_store.audit = 'prune'"))
    gone = select(audit_link.c.entry).where(audit_link.c.number <= last)
    await connection.execute(delete(audit).where(audit.c.id.in_(gone)))
    links = await connection.execute(delete(audit_link).where(audit_link.c.number <= last))
    # what they speak for is gone
    spent = delete(audit_checkpoint).where(audit_checkpoint.c.number < last)
    await connection.execute(spent)
    await connection.execute(text("SET LOCAL inference_store.audit = ''"))
    await connection.execute(update(audit_head).values(cut=last))
    await _note(connection, "cut", last, hash or b"", sign)
    return links.rowcount


def _last_old(cut: int, older_than_seconds: float, limit: int) -> Any:
    """The number before the first that is young enough to stay, at most `limit` further on."""
    end = func.now() - func.make_interval(0, 0, 0, 0, 0, 0, older_than_seconds)
    here = select(audit_link.c.number, audit.c.at)
    here = here.join_from(audit_link, audit, audit.c.id == audit_link.c.entry, isouter=True)
    page = here.where(audit_link.c.number.between(cut + 1, cut + limit)).subquery()
    young = select(func.min(page.c.number)).where(page.c.at >= end).scalar_subquery()
    return select(func.max(page.c.number)).where(page.c.number < func.coalesce(young, 2**62))


async def _note(
    connection: AsyncConnection, reason: Reason, number: int, hash: bytes, sign: Sign
) -> None:
    at = datetime.now(UTC)
    document = {"reason": reason, "number": number, "hash": hash.hex(), "at": at.isoformat()}
    values = {"reason": reason, "number": number, "hash": hash, "at": at}
    await connection.execute(insert(audit_checkpoint).values(**values, signed=sign(document)))
