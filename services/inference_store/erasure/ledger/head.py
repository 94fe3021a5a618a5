"""The progress of this database in the ledger, and the entries that its writers intended to put."""

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.erasure.log.hash_chain import Link
from inference_store.index.tables import ledger_head, ledger_intent

from .entry import Entry

_LOCK = 7_302_009


async def read_head(connection: AsyncConnection, *, lock: bool = False) -> Link:
    """Return the last entry that has taken effect here, or START.

    `lock`: against other writers until the transaction ends.
    """
    query = select(ledger_head.c.number, ledger_head.c.hash)
    row = (await connection.execute(query.with_for_update() if lock else query)).one()
    return Link(row.number, bytes.fromhex(row.hash))


async def intend(connection: AsyncConnection, entry: Entry) -> None:
    """Note, before it is put, that an entry of the bucket is ours."""
    row = {"number": entry.number, "hash": entry.hash}
    await connection.execute(ledger_intent.insert().values(row))


async def find_intended(connection: AsyncConnection, after: Link) -> set[str]:
    """Return the hashes of the entries that were intended to follow the head."""
    here = ledger_intent.c
    query = select(here.hash).where(here.number == after.number + 1)
    return set((await connection.execute(query)).scalars())


async def move_head(connection: AsyncConnection, entry: Entry) -> None:
    """Note that an entry has taken effect, in the same transaction as the effect."""
    await connection.execute(ledger_head.update().values(number=entry.number, hash=entry.hash))
    past = ledger_intent.c.number <= entry.number
    await connection.execute(ledger_intent.delete().where(past))


async def find_redacted(connection: AsyncConnection) -> int:
    """Return the number of the last entry that is redacted; 0 if none is."""
    return int((await connection.execute(select(ledger_head.c.forgotten))).scalar_one())


async def mark_redacted(connection: AsyncConnection, number: int) -> None:
    """Note that the entries up to this one are redacted."""
    await connection.execute(ledger_head.update().values(forgotten=number))


async def lock_writes(connection: AsyncConnection) -> None:
    """Wait until no other process writes. The lock lasts over transactions, until it is released
    or the connection ends."""
    await connection.execute(select(func.pg_advisory_lock(_LOCK)))


async def unlock_writes(connection: AsyncConnection) -> None:
    """Let the next process write."""
    await connection.execute(select(func.pg_advisory_unlock(_LOCK)))
