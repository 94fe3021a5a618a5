"""Linking what was committed. One writer at a time, behind the requests: none of them waits."""

import os

from sqlalchemy import func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index.tables import audit, audit_head, audit_link

from .hashes import DETAIL, FIXED, of_link, of_values

_SALT_BYTES = 16


async def link(connection: AsyncConnection, *, limit: int) -> int:
    """Give the oldest entries without a place the next places, at most `limit`; how many.

    Two writers wait for each other at the head. An entry that is being erased from is waited for.
    """
    head = (await connection.execute(select(audit_head).with_for_update())).one()
    query = select(*FIXED, audit.c.uid, audit.c.taken_by, DETAIL).where(audit.c.number.is_(None))
    rows = await connection.execute(query.order_by(audit.c.id).limit(limit).with_for_update())
    number, hash, links = head.number, head.hash, []
    for row in rows:
        salt = os.urandom(_SALT_BYTES)
        values_hash = of_values(salt, row.uid, row.written)
        number += 1
        hash = of_link(hash, number, row, values_hash)
        kept = salt if row.taken_by is None else None
        made = {"number": number, "entry": row.id, "salt": kept}
        links.append(made | {"values_hash": values_hash, "hash": hash})
    if links:
        await connection.execute(insert(audit_link), links)
        placed = update(audit).where(
            audit.c.id == audit_link.c.entry, audit_link.c.number > head.number
        )
        await connection.execute(placed.values(number=audit_link.c.number))
        await connection.execute(update(audit_head).values(number=number, hash=hash))
    return len(links)


async def unlinked(connection: AsyncConnection) -> tuple[int, float]:
    """How many entries have no place yet, and the age of the oldest in seconds."""
    age = func.extract("epoch", func.now() - func.min(audit.c.at))
    query = select(func.count(), func.coalesce(age, 0)).where(audit.c.number.is_(None))
    count, seconds = (await connection.execute(query)).one()
    return count, max(0.0, float(seconds))
