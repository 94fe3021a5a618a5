"""The progress of runs by a filter, so that the next run reads only what is new.

What a rule's filter keeps stays, and would be read again and again. Everything before the watermark
was checked under the same rules; an event that comes later is decided about as it arrives. A
metadata edit may change the result of a rule for an inference before the watermark: so everything
is checked again once a day, and in each requested run.
"""

import hashlib
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final, TypeAlias

from sqlalchemy import func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.erasure.locks import fence_shared
from inference_store.index.tables import hold, policy_sweep

from .effective_policy import EffectivePolicy, ErasureScope

WatermarkKey: TypeAlias = tuple[int, int, ErasureScope]
"""The model, the position of the rule among its rules, the scope."""
# A transaction that stores an inference, or an edit that holds its row, takes less.
_OVERLAP: Final = timedelta(hours=1)
_WHOLE: Final = timedelta(hours=24)


def hash_rules(chain: EffectivePolicy) -> str:
    """Return a hash that differs between two effective policies with other rules."""
    parts = [
        # also its revision: another policy in between may have kept what came late
        f"{rule.of}|{rule.revision}|{rule.rule.saved}|{rule.rule.input}|{rule.rule.response}"
        f"|{rule.rule.keep_inference}|{rule.minimum}"
        for policy in (chain, *(() if chain.coming is None else (chain.coming,)))
        for rule in policy.rules
    ]
    parts.append("" if chain.coming is None else str(len(chain.coming.rules)))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


async def load_watermarks(
    connection: AsyncConnection, chains: Mapping[int, EffectivePolicy], now: datetime
) -> dict[WatermarkKey, datetime]:
    """Return where each search may begin; one that is left out begins with the oldest inference."""
    hashes = {model: hash_rules(chain) for model, chain in chains.items()}
    here = policy_sweep.c
    # a hold that has ended since then protected what lies before the watermark
    ended = select(hold.c.id).where(hold.c.until > here.until, hold.c.until <= now)
    query = select(policy_sweep).where(here.whole_at > now - _WHOLE, ~ended.exists())
    return {
        (row.model, row.rule, row.scope): row.until - _OVERLAP
        for row in await connection.execute(query)
        if hashes.get(row.model) == row.chain
    }


async def save_watermarks(
    connection: AsyncConnection,
    chains: Mapping[int, EffectivePolicy],
    progress: Mapping[WatermarkKey, datetime],
    now: datetime,
    *,
    begun: Mapping[WatermarkKey, datetime],
    holds: int,
) -> None:
    """Store how far the searches came; those that are not in `begun` have checked everything.

    Store nothing if `holds` is not the present count of changes of holds: what a hold released lies
    before the watermark.
    """
    # whoever changes a hold has the fence: the change is visible here, or deletes these watermarks
    await fence_shared(connection)
    if await count_hold_changes(connection) != holds:
        return
    for key, until in progress.items():
        model, rule, scope = key
        values = {"until": until, "chain": hash_rules(chains[model])}
        values |= {} if key in begun else {"whole_at": now}
        inserted = insert(policy_sweep).values(
            model=model, rule=rule, scope=scope, **({"whole_at": now} | values)
        )
        await connection.execute(
            inserted.on_conflict_do_update(index_elements=["model", "rule", "scope"], set_=values)
        )


async def count_hold_changes(connection: AsyncConnection) -> int:
    """Return how often holds were placed, changed and released: the number only grows."""
    return int(await connection.scalar(select(func.coalesce(func.sum(hold.c.revision), 0))) or 0)


async def delete_watermarks(connection: AsyncConnection) -> None:
    """Delete every watermark: everything is checked again."""
    await connection.execute(policy_sweep.delete())
