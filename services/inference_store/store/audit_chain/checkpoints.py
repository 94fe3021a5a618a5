"""Where the chain stood, and where retention has cut it: signed, where there is a key."""

from collections.abc import Callable, Mapping
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


async def due(
    connection: AsyncConnection, *, every_seconds: float = 0.0, sign: Sign = unsigned
) -> dict[str, Any] | None:
    """A checkpoint of where the chain stands, for the ledger. None: it stands where it was noted
    last, or that is not so long ago."""
    head = (await connection.execute(select(audit_head))).one()
    newest = func.now() - func.make_interval(0, 0, 0, 0, 0, 0, every_seconds)
    columns = func.max(audit_checkpoint.c.number), func.max(audit_checkpoint.c.at) > newest
    noted, recent = (await connection.execute(select(*columns))).one()
    if recent or head.number == (noted or 0):
        return None
    document = _document("head", head.number, head.hash, datetime.now(UTC))
    return {**document, "signed": sign(document)}


async def apply_checkpoint(
    connection: AsyncConnection,
    body: Mapping[str, Any],
    at: datetime,
    actor: str,  # noqa: ARG001  (the ledger's signature)
) -> None:
    """Note a checkpoint. A restored Postgres that lacks what it speaks for goes on behind it: the
    places in between stay empty, and `verify` names them."""
    number, hash = body["number"], bytes.fromhex(body["hash"])
    here = audit_checkpoint.c
    same = select(here.id).where(here.number == number, here.hash == hash)
    if await connection.scalar(same.limit(1)) is None:
        values = {"reason": "head", "number": number, "hash": hash, "signed": body["signed"]}
        await connection.execute(insert(audit_checkpoint).values(**values, at=at))
    behind = update(audit_head).where(audit_head.c.number < number)
    await connection.execute(behind.values(number=number, hash=hash))


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
    signed = sign(_document(reason, number, hash, at))
    values = {"reason": reason, "number": number, "hash": hash, "at": at}
    await connection.execute(insert(audit_checkpoint).values(**values, signed=signed))


def _document(reason: Reason, number: int, hash: bytes, at: datetime) -> dict[str, Any]:
    """What is signed."""
    return {"reason": reason, "number": number, "hash": hash.hex(), "at": at.isoformat()}
