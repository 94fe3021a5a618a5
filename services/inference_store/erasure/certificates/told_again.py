"""What is told a second time, since Postgres was restored from an older backup: the bucket's
certificates name it already, and no other may.
"""

from collections.abc import AsyncIterator
from uuid import UUID

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inference_store.index.tables import erased_leaves

from . import erased
from .entries import OBJECT, entries_of

_HERE = erased_leaves.c
# Of entries that are looked for at once: about 30 MB.
_ENTRIES = 250_000


async def forget(
    engine: AsyncEngine, erasure: UUID, *, counted: int, objects: bool = False
) -> None:
    """Take out of an erasure's batches what a certificate of it names. Repeatable.

    `counted`: how many inferences (of one of `objects` alone: objects) it has erased by its own
    count, which has each of them once.
    """
    async with engine.begin() as connection:
        certified = await _certified(connection, erasure, objects)
        told = await erased.told(connection, erasure, objects=objects)
        if not certified or told <= counted:
            return
        if certified >= counted and await _hashed_anew(connection, erasure):
            # all of it, as far as sums can tell: its entries cannot be compared
            gone = erased_leaves.delete().where(_HERE.erasure == erasure)
            await connection.execute(gone.where(_HERE.certificate.is_(None)))
            return
    async for batches in _groups(engine, erasure):
        named = await _named(engine, erasure, batches)
        async with engine.begin() as connection:
            for batch in batches:
                await _without(connection, batch, named, objects)


async def _certified(connection: AsyncConnection, erasure: UUID, objects: bool) -> int:
    amount = func.sum(_HERE.objects if objects else _HERE.inferences)
    query = select(func.coalesce(amount, 0)).where(_HERE.erasure == erasure)
    return int(await connection.scalar(query.where(_HERE.certificate.is_not(None))) or 0)


async def _hashed_anew(connection: AsyncConnection, erasure: UUID) -> bool:
    """Whether some of what is not certified was hashed by a key that nothing certified was."""
    other = erased_leaves.alias()
    same = select(other.c.id).where(
        other.c.erasure == erasure,
        other.c.certificate.is_not(None),
        other.c.hashed_by.is_not_distinct_from(_HERE.hashed_by),
    )
    anew = select(_HERE.id).where(
        _HERE.erasure == erasure, _HERE.certificate.is_(None), ~same.exists()
    )
    return bool(await connection.scalar(select(anew.exists())))


async def _groups(engine: AsyncEngine, erasure: UUID) -> AsyncIterator[list[int]]:
    """The batches that no certificate names, so many entries at a time."""
    query = select(_HERE.id, (_HERE.inferences + _HERE.objects).label("entries"))
    query = query.where(_HERE.erasure == erasure, _HERE.certificate.is_(None))
    async with engine.connect() as connection:
        rows = list(await connection.execute(query.order_by(_HERE.id)))
    group: list[int] = []
    entries = 0
    for row in rows:
        group.append(row.id)
        entries += row.entries
        if entries >= _ENTRIES:
            yield group
            group, entries = [], 0
    if group:
        yield group


async def _named(engine: AsyncEngine, erasure: UUID, batches: list[int]) -> set[bytes]:
    """Those of the batches' entries that certificates of the erasure have."""
    wanted = {
        entry async for chunk in erased.chunks(engine, batches) for entry in entries_of(chunk)
    }
    query = select(_HERE.id).where(_HERE.erasure == erasure, _HERE.certificate.is_not(None))
    async with engine.connect() as connection:
        certified = list((await connection.execute(query.order_by(_HERE.id))).scalars())
    named: set[bytes] = set()
    async for chunk in erased.chunks(engine, certified):
        named.update(wanted.intersection(entries_of(chunk)))
    return named


async def _without(connection: AsyncConnection, batch: int, named: set[bytes], alone: bool) -> None:
    """A batch of which no inference is new has no new object either, unless objects are erased
    `alone`: what several share is told by whichever of them went last."""
    here = _HERE.id == batch
    leaves = bytes(await connection.scalar(select(_HERE.leaves).where(here)) or b"")
    left = [entry for entry in entries_of(leaves) if entry not in named]
    objects = sum(entry[:1] == OBJECT for entry in left)
    if not left or (objects == len(left) and not alone):
        await connection.execute(erased_leaves.delete().where(here))
        return
    values = {"inferences": len(left) - objects, "objects": objects, "leaves": b"".join(left)}
    await connection.execute(erased_leaves.update().where(here).values(values))


async def key_of(connection: AsyncConnection, erasure: UUID) -> str | None:
    """The id of the key that hashed what is certified of an erasure; None: nothing is."""
    query = select(_HERE.hashed_by).where(_HERE.erasure == erasure, _HERE.certificate.is_not(None))
    found = await connection.scalar(query.order_by(_HERE.id.desc()).limit(1))
    return None if found is None else str(found)
