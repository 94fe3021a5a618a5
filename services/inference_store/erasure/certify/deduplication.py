"""Removes from lists what certificates in the bucket name already.

After Postgres is restored from an older backup, an erasure records these entries a second time, and
no other certificate may name them.
"""

from collections.abc import AsyncIterator
from uuid import UUID

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inference_store.index.tables import erased_leaves

from . import erased_lists
from .list_entries import OBJECT, split_entries

_HERE = erased_leaves.c
# Of entries that are looked for at once: about 30 MB.
_ENTRIES = 250_000


async def deduplicate_restored(
    engine: AsyncEngine, erasure: UUID, *, counted: int, objects: bool = False
) -> None:
    """Remove from an erasure's batches what a certificate of it names. Repeatable.

    `counted`: how many inferences the erasure has erased by its own count, which has each of them
    once; with `objects`, how many objects.
    """
    async with engine.begin() as connection:
        certified = await _count_certified(connection, erasure, objects)
        listed = await erased_lists.count_listed(connection, erasure, objects=objects)
        if not certified or listed <= counted:
            return
        if certified >= counted and await _is_hashed_by_another_key(connection, erasure):
            # all of it, as far as sums can tell: its entries cannot be compared
            uncertified = erased_leaves.delete().where(_HERE.erasure == erasure)
            await connection.execute(uncertified.where(_HERE.certificate.is_(None)))
            return
    async for batches in _group_batches(engine, erasure):
        duplicates = await _find_duplicates(engine, erasure, batches)
        async with engine.begin() as connection:
            for batch in batches:
                await _remove_duplicates(connection, batch, duplicates, objects)


async def _count_certified(connection: AsyncConnection, erasure: UUID, objects: bool) -> int:
    amount = func.sum(_HERE.objects if objects else _HERE.inferences)
    query = select(func.coalesce(amount, 0)).where(_HERE.erasure == erasure)
    return int(await connection.scalar(query.where(_HERE.certificate.is_not(None))) or 0)


async def _is_hashed_by_another_key(connection: AsyncConnection, erasure: UUID) -> bool:
    """Return whether a key that hashed nothing certified hashed some of what is not certified."""
    other = erased_leaves.alias()
    same = select(other.c.id).where(
        other.c.erasure == erasure,
        other.c.certificate.is_not(None),
        other.c.hashed_by.is_not_distinct_from(_HERE.hashed_by),
    )
    others = select(_HERE.id).where(
        _HERE.erasure == erasure, _HERE.certificate.is_(None), ~same.exists()
    )
    return bool(await connection.scalar(select(others.exists())))


async def _group_batches(engine: AsyncEngine, erasure: UUID) -> AsyncIterator[list[int]]:
    """Yield the batches that no certificate names, in groups of a limited number of entries."""
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


async def _find_duplicates(engine: AsyncEngine, erasure: UUID, batches: list[int]) -> set[bytes]:
    """Return the entries of these batches that certificates of the erasure have too."""
    entries = {
        entry
        async for chunk in erased_lists.read_chunks(engine, batches)
        for entry in split_entries(chunk)
    }
    query = select(_HERE.id).where(_HERE.erasure == erasure, _HERE.certificate.is_not(None))
    async with engine.connect() as connection:
        certified = list((await connection.execute(query.order_by(_HERE.id))).scalars())
    duplicates: set[bytes] = set()
    async for chunk in erased_lists.read_chunks(engine, certified):
        duplicates.update(entries.intersection(split_entries(chunk)))
    return duplicates


async def _remove_duplicates(
    connection: AsyncConnection, batch: int, duplicates: set[bytes], alone: bool
) -> None:
    """Remove duplicates from a batch.

    A batch without a new inference has no new object either, unless objects are erased `alone`: an
    object that several share is recorded with the last of them.
    """
    here = _HERE.id == batch
    leaves = bytes(await connection.scalar(select(_HERE.leaves).where(here)) or b"")
    rest = [entry for entry in split_entries(leaves) if entry not in duplicates]
    objects = sum(entry[:1] == OBJECT for entry in rest)
    if not rest or (objects == len(rest) and not alone):
        await connection.execute(erased_leaves.delete().where(here))
        return
    values = {"inferences": len(rest) - objects, "objects": objects, "leaves": b"".join(rest)}
    await connection.execute(erased_leaves.update().where(here).values(values))


async def find_hash_key(connection: AsyncConnection, erasure: UUID) -> str | None:
    """Return the id of the key that hashed what is certified of an erasure; None if nothing is."""
    query = select(_HERE.hashed_by).where(_HERE.erasure == erasure, _HERE.certificate.is_not(None))
    key = await connection.scalar(query.order_by(_HERE.id.desc()).limit(1))
    return None if key is None else str(key)
