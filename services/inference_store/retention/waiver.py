"""Waives the part of an erasure that holds protect, if that is requested.

It works batch by batch. Each batch is in the ledger before it takes effect; then the erasure needs
only its certificate. After a crash in between, less is left to waive.
"""

import structlog
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.erasure.ledger import Ledger
from inference_store.erasure.progress.erasure import Erasure
from inference_store.erasure.progress.state_changes import finish_erasure
from inference_store.erasure.request import waiver

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
        # its certificate is next; without a key, the certifying step ends the erasure
        state = await finish_erasure(connection, erasure, error=None, certifying=True)
    _log.info("erasure", action="erasure", id=str(erasure.id), state=state)
