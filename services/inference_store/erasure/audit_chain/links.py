"""Links entries that were committed. Only one process writes, and no request waits for it."""

import os

from sqlalchemy import func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.erasure.log.hash_chain import Link
from inference_store.index.tables import audit, audit_head, audit_link

from .hashes import DETAIL, FIXED, hash_link, hash_values

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
