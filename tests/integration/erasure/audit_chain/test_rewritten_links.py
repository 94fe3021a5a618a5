"""An audit entry rewritten together with its link, by someone who owns the tables and our code."""

from uuid import UUID

import pytest
from sqlalchemy import select, text, update
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inference_store.access import Action, Who
from inference_store.erasure import audit_chain
from inference_store.erasure.audit_chain.hashes import DETAIL, FIXED, hash_link, hash_values
from inference_store.erasure.log.hash_chain import Link
from inference_store.index.audit import note
from inference_store.index.tables import audit, audit_head, audit_link

LAST = 8


@pytest.fixture
async def linked(engine: AsyncEngine) -> AsyncEngine:
    """Write eight entries to the chain, and remove their guards."""
    uids = [UUID(int=number) for number in range(LAST)]
    async with engine.begin() as connection:
        await note(connection, Who("key:ada", None), Action.DATA_READ, uids=uids)
        await audit_chain.link_entries(connection, limit=LAST)
        for table in ("audit", "audit_link"):
            await connection.execute(text(f"ALTER TABLE {table} DISABLE TRIGGER USER"))
    return engine


async def rewrite(connection: AsyncConnection, number: int) -> None:
    """Give an entry another actor, and its link the hash that it would have had."""
    forged = update(audit).where(audit.c.number == number).values(actor="key:eve")
    await connection.execute(forged)
    before = select(audit_link.c.hash).where(audit_link.c.number == number - 1)
    entry = select(*FIXED, audit.c.uid, DETAIL, audit_link.c.salt)
    entry = entry.join_from(audit, audit_link, audit_link.c.entry == audit.c.id)
    row = (await connection.execute(entry.where(audit.c.number == number))).one()
    values = hash_values(row.salt, row.uid, row.written)
    hash = hash_link(Link(number - 1, (await connection.execute(before)).scalar_one()), row, values)
    link = update(audit_link).where(audit_link.c.number == number)
    await connection.execute(link.values(values_hash=values, hash=hash))


async def find_faults(engine: AsyncEngine) -> list[int | None]:
    async with engine.connect() as connection:
        await connection.execution_options(isolation_level="REPEATABLE READ")
        return [fault.number for fault in (await audit_chain.verify(connection)).failures]


async def test_the_link_behind_it_no_longer_fits(linked: AsyncEngine) -> None:
    assert await find_faults(linked) == []
    async with linked.begin() as connection:
        await rewrite(connection, 5)
    assert await find_faults(linked) == [6]


async def test_rewriting_all_later_links_leaves_only_the_head_wrong(linked: AsyncEngine) -> None:
    async with linked.begin() as connection:
        for number in range(5, LAST + 1):
            await rewrite(connection, number)
    assert await find_faults(linked) == [LAST + 1]


async def test_with_the_head_too_it_takes_a_checkpoint_to_find_it(linked: AsyncEngine) -> None:
    async with linked.begin() as connection:
        for number in range(5, LAST + 1):
            await rewrite(connection, number)
        last = select(audit_link.c.hash).where(audit_link.c.number == LAST).scalar_subquery()
        anchor = (await connection.execute(select(audit_head.c.hash))).scalar_one()
        await connection.execute(update(audit_head).values(hash=last))
    assert await find_faults(linked) == []
    async with linked.connect() as connection:
        verdict = await audit_chain.verify(connection, anchors=[Link(LAST, anchor)])
    assert [fault.number for fault in verdict.failures] == [LAST]
