"""Records where the chain stood, and where retention has cut it: signed, if there is a key."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Literal

from sqlalchemy import Delete, delete, func, insert, select, text, update
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index.tables import audit, audit_checkpoint, audit_head, audit_link

from .hashes import hash_checkpoint

Reason = Literal["cut", "head"]
# Returns the document with its signature, as it is stored; None: there is no key.
Sign = Callable[[dict[str, Any]], dict[str, Any] | None]


def unsigned(_: dict[str, Any]) -> None:
    """Sign nothing: there is no key, and the hash must do."""


async def make_checkpoint(
    connection: AsyncConnection, *, every_seconds: float = 0.0, sign: Sign = unsigned
) -> dict[str, Any] | None:
    """Return a checkpoint of where the chain stands, for the ledger.

    None if the chain has not grown since the last one, or if that is recent.
    """
    head = (await connection.execute(select(audit_head))).one()
    newest = func.now() - func.make_interval(0, 0, 0, 0, 0, 0, every_seconds)
    columns = func.max(audit_checkpoint.c.number), func.max(audit_checkpoint.c.at) > newest
    last, recent = (await connection.execute(select(*columns))).one()
    if recent or head.number == (last or 0):
        return None
    document = _make_document("head", head.number, head.hash, datetime.now(UTC))
    return {**document, "signed": sign(await _add_order(connection, document, head.cut))}


async def apply_checkpoint(
    connection: AsyncConnection,
    body: Mapping[str, Any],
    at: datetime,
    actor: str,  # noqa: ARG001  (the ledger's signature)
) -> None:
    """Store a checkpoint.

    A restored Postgres that lacks the entries before it goes on after it: the numbers in between
    stay empty, and `verify` reports them.
    """
    number, hash = body["number"], bytes.fromhex(body["hash"])
    here = audit_checkpoint.c
    same = select(here.id).where(here.number == number, here.hash == hash)
    if await connection.scalar(same.limit(1)) is None:
        values = {"reason": "head", "number": number, "hash": hash, "signed": body["signed"]}
        await connection.execute(insert(audit_checkpoint).values(**values, at=at))
    behind = update(audit_head).where(audit_head.c.number < number)
    await connection.execute(behind.values(number=number, hash=hash))


async def prune_entries(
    connection: AsyncConnection, *, older_than_seconds: float, limit: int, sign: Sign = unsigned
) -> int:
    """Delete the oldest entries that are older than this, at most `limit`; return how many.

    A checkpoint keeps the hash of the last one deleted, so that the rest can be verified. An entry
    without a link stays until it has one.
    """
    head = (await connection.execute(select(audit_head).with_for_update())).one()
    last = await connection.scalar(_select_last_old(head.cut, older_than_seconds, limit))
    if last is None:
        return 0
    hash = await connection.scalar(select(audit_link.c.hash).where(audit_link.c.number == last))
    await connection.execute(text("SET LOCAL inference_store.audit = 'prune'"))
    old = select(audit_link.c.entry).where(audit_link.c.number <= last)
    await connection.execute(delete(audit).where(audit.c.id.in_(old)))
    links = await connection.execute(delete(audit_link).where(audit_link.c.number <= last))
    await connection.execute(_delete_spent(last))
    await connection.execute(text("SET LOCAL inference_store.audit = ''"))
    await connection.execute(update(audit_head).values(cut=last))
    await _note_cut(connection, last, hash or b"", sign)
    return links.rowcount


def _select_last_old(cut: int, older_than_seconds: float, limit: int) -> Any:
    """Select the last of the first `limit` numbers after the cut, before the first that is recent
    enough to stay. A restored backup goes on after a gap of any width."""
    end = func.now() - func.make_interval(0, 0, 0, 0, 0, 0, older_than_seconds)
    here = select(audit_link.c.number, audit.c.at)
    here = here.join_from(audit_link, audit, audit.c.id == audit_link.c.entry, isouter=True)
    next_ones = here.where(audit_link.c.number > cut).order_by(audit_link.c.number)
    page = next_ones.limit(limit).subquery()
    young = select(func.min(page.c.number)).where(page.c.at >= end).scalar_subquery()
    return select(func.max(page.c.number)).where(page.c.number < func.coalesce(young, 2**62))


def _delete_spent(last: int) -> Delete:
    """Delete the checkpoints whose entries are gone: only the first ones, because each names the
    one before it."""
    here, later = audit_checkpoint.c, audit_checkpoint.alias().c
    first_needed = select(func.min(later.id)).where(later.number >= last).scalar_subquery()
    spent = delete(audit_checkpoint).where(here.number < last)
    return spent.where(here.id < func.coalesce(first_needed, 2**62))


async def _note_cut(connection: AsyncConnection, number: int, hash: bytes, sign: Sign) -> None:
    at = datetime.now(UTC)
    signed = sign(await _add_order(connection, _make_document("cut", number, hash, at), number))
    values = {"reason": "cut", "number": number, "hash": hash, "at": at}
    await connection.execute(insert(audit_checkpoint).values(**values, signed=signed))


def _make_document(reason: Reason, number: int, hash: bytes, at: datetime) -> dict[str, Any]:
    return {"reason": reason, "number": number, "hash": hash.hex(), "at": at.isoformat()}


async def _add_order(
    connection: AsyncConnection, document: dict[str, Any], cut: int
) -> dict[str, Any]:
    """Add how far the chain was cut by then, and the hash of the signed checkpoint before it, so
    that none can be removed or inserted."""
    newest = await find_newest_signed(connection)
    previous = "" if newest is None else hash_checkpoint(newest).hex()
    return {**document, "cut": cut, "previous": previous}


async def find_newest_signed(connection: AsyncConnection) -> dict[str, Any] | None:
    """Return the newest signed checkpoint, with its signature; None if there is none."""
    here = audit_checkpoint.c
    query = select(here.signed).where(func.jsonb_typeof(here.signed) == "object")
    signed = await connection.scalar(query.order_by(here.id.desc()).limit(1))
    return None if signed is None else dict(signed)
