"""How far this database is in the ledger, and which entries its writers meant to put."""

from dataclasses import dataclass

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index.tables import ledger_head, ledger_intent

from .entry import Entry

_LOCK = 7_302_009


@dataclass(frozen=True, slots=True)
class Head:
    """The last entry that has taken effect here; number 0 and an empty hash: none has."""

    number: int
    hash: str


async def read(connection: AsyncConnection, *, lock: bool = False) -> Head:
    """The head; `lock`: against other writers until the transaction ends."""
    query = select(ledger_head.c.number, ledger_head.c.hash)
    row = (await connection.execute(query.with_for_update() if lock else query)).one()
    return Head(row.number, row.hash)


async def intend(connection: AsyncConnection, entry: Entry) -> None:
    """Say, before it is put, that an entry of the bucket is ours."""
    row = {"number": entry.number, "hash": entry.hash}
    await connection.execute(ledger_intent.insert().values(row))


async def intended(connection: AsyncConnection, after: Head) -> set[str]:
    """The hashes of what was meant to follow the head."""
    here = ledger_intent.c
    query = select(here.hash).where(here.number == after.number + 1)
    return set((await connection.execute(query)).scalars())


async def move(connection: AsyncConnection, entry: Entry) -> None:
    """The entry has taken effect: in the same transaction as the effect."""
    await connection.execute(ledger_head.update().values(number=entry.number, hash=entry.hash))
    past = ledger_intent.c.number <= entry.number
    await connection.execute(ledger_intent.delete().where(past))


async def forgotten(connection: AsyncConnection) -> int:
    """The last entry that has forgotten what it said; 0: none has."""
    return int((await connection.execute(select(ledger_head.c.forgotten))).scalar_one())


async def forget_to(connection: AsyncConnection, number: int) -> None:
    """Entries up to this one have forgotten what they said."""
    await connection.execute(ledger_head.update().values(forgotten=number))


async def take_turn(connection: AsyncConnection) -> None:
    """Wait until no other process writes; the turn lasts over transactions, until it is given
    back or the connection ends."""
    await connection.execute(select(func.pg_advisory_lock(_LOCK)))


async def give_back(connection: AsyncConnection) -> None:
    """Let the next one write."""
    await connection.execute(select(func.pg_advisory_unlock(_LOCK)))
