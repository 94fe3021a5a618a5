"""The chain of the audit: nobody can change, remove or cut entries without being noticed.

Each entry has a link: a hash over the link before it, over what is fixed in the entry (when, who,
from where, what, of which model) and over a salted hash of its values (the inference and the
detail). So an erasure can remove the values, and the chain stays valid.

Only one process links, after the commit, and no request waits for it. A checkpoint says where the
chain stands, and up to where retention may cut it. It is in the ledger before anything is cut, and
the newest is here. Whoever owns the tables can cut the chain and write a checkpoint that says so.
If there is a key, they cannot sign the ledger's end, which is locked if the bucket can lock.
"""

import os
from collections.abc import (
    Collection,
    Sequence,
)
from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID

from sqlalchemy import (
    ColumnElement,
    Text,
    cast,
    delete,
    func,
    insert,
    literal,
    select,
    text,
    update,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.access.rights import Action
from inference_store.erasure.hash_chain import Link, compute_hash
from inference_store.index.audit import match_uids
from inference_store.index.tables import audit, audit_head, audit_link

from .mentions import mentions as mentioned

GENESIS: Final = Link(0, bytes(32))
"""The link before the first entry."""
# As Postgres writes JSONB: the same text for the same value.
DETAIL = cast(audit.c.detail, Text).label("written")
FIXED = tuple(
    audit.c[name] for name in ("id", "at", "actor", "client", "action", "model", "model_id")
)


def hash_values(salt: bytes, uid: UUID | None, written: str) -> bytes:
    """Return the hash of an entry's values; without the salt nobody can guess them."""
    return compute_hash([None if uid is None else str(uid), written], after=salt)


def hash_link(previous: Link, row: Any, values_hash: bytes) -> bytes:
    """Return the hash of the link after `previous`, which covers an entry."""
    fixed = {column.name: getattr(row, column.name) for column in FIXED}
    fixed["at"] = row.at.astimezone(UTC).isoformat()
    content = {**fixed, "number": previous.number + 1, "values": values_hash.hex()}
    return compute_hash(content, after=previous.hash)


_SALT_BYTES = 16


async def link_entries(connection: AsyncConnection, *, limit: int) -> int:
    """Number and link the oldest entries that are not linked, at most `limit`; return how many.

    Two writers wait for each other at the head. An entry that is being erased from is waited for.
    """
    head = (await connection.execute(select(audit_head).with_for_update())).one()
    query = select(*FIXED, audit.c.uid, audit.c.taken_by, DETAIL).where(audit.c.number.is_(None))
    rows = await connection.execute(query.order_by(audit.c.id).limit(limit).with_for_update())
    end, links = Link(head.number, head.hash), []
    for row in rows:
        salt = os.urandom(_SALT_BYTES)
        values_hash = hash_values(salt, row.uid, row.written)
        end = Link(end.number + 1, hash_link(end, row, values_hash))
        stored_salt = salt if row.taken_by is None else None
        link = {"number": end.number, "entry": row.id, "salt": stored_salt}
        links.append(link | {"values_hash": values_hash, "hash": end.hash})
    if links:
        await connection.execute(insert(audit_link), links)
        numbered = update(audit).where(
            audit.c.id == audit_link.c.entry, audit_link.c.number > head.number
        )
        await connection.execute(numbered.values(number=audit_link.c.number))
        await connection.execute(update(audit_head).values(number=end.number, hash=end.hash))
    return len(links)


async def measure_unlinked(connection: AsyncConnection) -> tuple[int, float]:
    """Return how many entries have no number yet, and the age of the oldest in seconds."""
    age = func.extract("epoch", func.now() - func.min(audit.c.at))
    query = select(func.count(), func.coalesce(age, 0)).where(audit.c.number.is_(None))
    count, seconds = (await connection.execute(query)).one()
    return count, max(0.0, float(seconds))


# `number`, `hash`, `cut`, `cut_hash`, `at`
Checkpoint = dict[str, Any]
# What one checkpoint lets retention cut.
_MOST_CUT: Final = 1_000_000


async def make_checkpoint(
    connection: AsyncConnection,
    *,
    every_seconds: float = 0.0,
    keep_seconds: float | None = None,
) -> Checkpoint | None:
    """Return a checkpoint of where the chain stands.

    It lets retention cut what is older than `keep_seconds`; None: nothing more. Return None if
    there is nothing more to cut, and the chain has not grown since the last one, or that is recent.
    """
    head = (await connection.execute(select(audit_head))).one()
    stood, cut = (GENESIS, GENESIS) if head.checkpoint is None else read_links(head.checkpoint)
    old = None if keep_seconds is None else await _find_last_old(connection, cut, keep_seconds)
    now = datetime.now(UTC)
    if old is None and (head.number == stood.number or _is_recent(head, now, every_seconds)):
        return None
    cut = old or cut
    return {
        "number": head.number,
        "hash": head.hash.hex(),
        "cut": cut.number,
        "cut_hash": cut.hash.hex(),
        "at": now.isoformat(),
    }


def _is_recent(head: Any, now: datetime, seconds: float) -> bool:
    if head.checkpoint is None:
        return False
    at = datetime.fromisoformat(head.checkpoint["at"])
    return (now - at).total_seconds() < seconds


async def _find_last_old(connection: AsyncConnection, cut: Link, seconds: float) -> Link | None:
    """Return the last link after the cut, before the first whose entry is recent enough to stay.

    A restored backup goes on after a gap of any width.
    """
    end = func.now() - func.make_interval(0, 0, 0, 0, 0, 0, seconds)
    here = select(audit_link.c.number, audit_link.c.hash, audit.c.at)
    here = here.join_from(audit_link, audit, audit.c.id == audit_link.c.entry, isouter=True)
    next_ones = here.where(audit_link.c.number > cut.number).order_by(audit_link.c.number)
    page = next_ones.limit(_MOST_CUT).subquery()
    young = select(func.min(page.c.number)).where(page.c.at >= end).scalar_subquery()
    old = select(page.c.number, page.c.hash).where(page.c.number < func.coalesce(young, 2**62))
    row = (await connection.execute(old.order_by(page.c.number.desc()).limit(1))).first()
    return None if row is None else Link(row.number, row.hash)


def read_links(checkpoint: Checkpoint) -> tuple[Link, Link]:
    """Return where the chain stood, and up to where it may be cut."""
    return (
        Link(int(checkpoint["number"]), bytes.fromhex(checkpoint["hash"])),
        Link(int(checkpoint["cut"]), bytes.fromhex(checkpoint["cut_hash"])),
    )


async def apply_checkpoint(
    connection: AsyncConnection, body: Checkpoint, _: datetime, __: str
) -> Checkpoint:
    """Store a checkpoint as the newest.

    A restored Postgres that lacks the entries before it goes on after it: the numbers in between
    stay empty, and `verify` reports them.
    """
    stood = read_links(body)[0]
    await connection.execute(update(audit_head).values(checkpoint=body))
    behind = update(audit_head).where(audit_head.c.number < stood.number)
    await connection.execute(behind.values(number=stood.number, hash=stood.hash))
    return body


async def prune_entries(connection: AsyncConnection, *, limit: int) -> int:
    """Delete the oldest entries, at most `limit`, up to where the newest checkpoint says; return
    how many."""
    head = (await connection.execute(select(audit_head).with_for_update())).one()
    _, cut = (GENESIS, GENESIS) if head.checkpoint is None else read_links(head.checkpoint)
    here = audit_link.c
    query = select(here.number, here.hash, here.entry).order_by(here.number)
    query = query.where(here.number > head.cut, here.number <= cut.number)
    page = (await connection.execute(query.limit(limit))).all()
    if head.cut < cut.number:
        last = Link(page[-1].number, page[-1].hash) if len(page) == limit else cut
        await connection.execute(text("SET LOCAL inference_store.audit = 'prune'"))
        entries = [row.entry for row in page]
        await connection.execute(delete(audit).where(audit.c.id == func.any(entries)))
        await connection.execute(delete(audit_link).where(here.number <= last.number))
        await connection.execute(text("SET LOCAL inference_store.audit = ''"))
        await connection.execute(update(audit_head).values(cut=last.number, cut_hash=last.hash))
    return len(page)


ACTOR: Final = "retention"
_REDACTED = 10_000


async def redact_values(
    connection: AsyncConnection, erasure: UUID, *, uids: Collection[UUID]
) -> int:
    """Remove `uid` and `detail` from every entry about these inferences; return how many.

    In the erasure's own transaction; repeatable. An entry of its own lists the redacted ones:
    values that are gone without being listed are a failure of the chain.
    """
    redacted = 0
    while uids and (entries := await _lock(connection, match_uids(uids))):
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
    has_detail = audit.c.detail != literal({}, JSONB)
    query = select(audit.c.id, audit.c.detail).where(_redactable(), audit.c.id > after, has_detail)
    query = query.where(is_in_reach)
    page = (await connection.execute(query.order_by(audit.c.id).limit(limit))).all()
    if not page:
        return 0, None
    entries = [row.id for row in page if mentioned(row.detail, *subject)]
    about = audit.c.id == func.any(entries)
    locked = await _lock(connection, about) if entries else []
    redacted = await _redact(connection, erasure, locked)
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


async def _lock(connection: AsyncConnection, about: ColumnElement[bool]) -> list[int]:
    """Lock entries, of many the first, and return those that nobody else has redacted."""
    query = select(audit.c.id).where(_redactable(), about).order_by(audit.c.id).limit(_REDACTED)
    return list((await connection.execute(query.with_for_update())).scalars())


def _redactable() -> ColumnElement[bool]:
    return audit.c.taken_by.is_(None) & (audit.c.action != Action.AUDIT_VALUES_TAKEN.value)
