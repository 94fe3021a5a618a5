"""Waives what holds protect of an erasure, if somebody has asked for that.

It works batch by batch, each in the ledger before it takes effect; then the erasure needs only its
certificate. After a crash in between, less is left to waive.
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
    erasure: Erasure,
    *,
    batch: int,
    actor: str,
) -> None:
    """Waive the rest of an erasure.

    Raises the errors of the database and Unavailable; it goes on later.
    """
    while True:
        await check.confirm_step()
        async with engine.connect() as connection:
            body = await waiver.find_held_rest(connection, erasure, limit=batch)
        if body is None:
            break
        await ledger.write("erasure_given_up", body, actor=actor)
    async with engine.begin() as connection:
        # its certificate is next; if no key signs, the certifying step says that it is over
        state = await erasures.finish(connection, erasure, error=None, certifying=True)
    _log.info("erasure", action="erasure", id=str(erasure.id), state=state)
