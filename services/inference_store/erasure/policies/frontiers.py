"""How far sweeps by a filter have come, so that the next one looks only at what is new.

What a rule's filter kept stays, and would be looked at again and again. Behind the frontier lies
what was looked at under the same chain; an event that comes later than that is decided about as it
arrives. A metadata edit may change what a rule says of an inference behind it: so everything is
looked at again once a day, and in each run that somebody asks for.
"""

import hashlib
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final, TypeAlias

from sqlalchemy import func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.erasure.mark.marks import gate_shared
from inference_store.index.tables import hold, policy_sweep

from . import Chain, Scope

Frontier: TypeAlias = tuple[int, int, Scope]
"""Model, place of the rule in its chain, scope."""
# A transaction that stores an inference, or an edit that holds its row, takes less.
_OVERLAP: Final = timedelta(hours=1)
_WHOLE: Final = timedelta(hours=24)


def sign(chain: Chain) -> str:
    """What tells two chains apart."""
    parts = [
        # also its revision: under another policy in between, what came late was kept by that
        f"{each.of}|{each.revision}|{each.rule.saved}|{each.rule.input}|{each.rule.response}"
        f"|{each.rule.keep_inference}|{each.minimum}"
        for each in chain.rules
    ]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


async def load(
    connection: AsyncConnection, chains: Mapping[int, Chain], now: datetime
) -> dict[Frontier, datetime]:
    """Where each sweep may begin; one that is not there begins at the beginning."""
    signs = {model: sign(chain) for model, chain in chains.items()}
    here = policy_sweep.c
    # a hold that has ended by itself since kept what lies behind
    ended = select(hold.c.id).where(hold.c.until > here.until, hold.c.until <= now)
    query = select(policy_sweep).where(here.whole_at > now - _WHOLE, ~ended.exists())
    return {
        (row.model, row.rule, row.scope): row.until - _OVERLAP
        for row in await connection.execute(query)
        if signs.get(row.model) == row.chain
    }


async def save(
    connection: AsyncConnection,
    chains: Mapping[int, Chain],
    swept: Mapping[Frontier, datetime],
    now: datetime,
    *,
    begun: Mapping[Frontier, datetime],
    holds: int,
) -> None:
    """Remember how far sweeps came; what is not in `begun` has looked at everything.

    Nothing, where a hold was placed, changed or released since there were so many `holds` of
    them: what it let go lies behind.
    """
    # whoever changes a hold has the gate: it is seen here, or forgets what is written here
    await gate_shared(connection)
    if await changes_of_holds(connection) != holds:
        return
    for place, until in swept.items():
        model, rule, scope = place
        values = {"until": until, "chain": sign(chains[model])}
        values |= {} if place in begun else {"whole_at": now}
        made = insert(policy_sweep).values(
            model=model, rule=rule, scope=scope, **({"whole_at": now} | values)
        )
        await connection.execute(
            made.on_conflict_do_update(index_elements=["model", "rule", "scope"], set_=values)
        )


async def changes_of_holds(connection: AsyncConnection) -> int:
    """How many there were: it only grows."""
    return int(await connection.scalar(select(func.coalesce(func.sum(hold.c.revision), 0))) or 0)


async def forget(connection: AsyncConnection) -> None:
    """Forget every frontier: all is looked at again."""
    await connection.execute(policy_sweep.delete())
