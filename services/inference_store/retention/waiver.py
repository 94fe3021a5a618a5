"""Gives up what holds keep of an erasure, where somebody has asked for that.

Batch by batch, each in the ledger before it takes effect, then the erasure is over but for its
certificate. A crash in between leaves less to give up.
"""

import structlog
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.erasure import erasures
from inference_store.erasure.erasures import Erasure, waiver
from inference_store.erasure.ledger import Ledger

from .leadership_check import LeadershipCheck

_log = structlog.get_logger()


async def waive_held(
    engine: AsyncEngine,
    ledger: Ledger,
    check: LeadershipCheck,
    one: Erasure,
    *,
    batch: int,
    actor: str,
) -> None:
    """Give up the rest. Raises the database's trouble and Unavailable: it goes on then."""
    while True:
        await check.confirm_step()
        async with engine.connect() as connection:
            body = await waiver.find_held_rest(connection, one, limit=batch)
        if body is None:
            break
        await ledger.write("erasure_given_up", body, actor=actor)
    async with engine.begin() as connection:
        # its certificate is next; where no key signs, whoever certifies says that it is over
        state = await erasures.finish(connection, one, error=None, certifying=True)
    _log.info("erasure", action="erasure", id=str(one.id), state=state)
