"""Erasures that end without a certificate."""

from typing import Final

import structlog
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.erasure.certify import chain
from inference_store.erasure.progress.erasure import Erasure, State
from inference_store.erasure.progress.state_changes import advance_erasure
from inference_store.platform.metrics import UNCERTIFIED

_log = structlog.get_logger()
# The reasons for which an erasure ends without a certificate.
UNCERTIFIED_REASONS: Final = ("no_key", "key_missing", "unlisted")


async def end_without_key(engine: AsyncEngine, erasure: Erasure) -> State:
    """End an erasure without a certificate, as there is no key."""
    async with engine.connect() as connection:
        began = (await chain.find_head(connection)).number > 0
    return await end_uncertified(engine, erasure, "key_missing" if began else "no_key")


async def end_uncertified(engine: AsyncEngine, erasure: Erasure, reason: str) -> State:
    """End an erasure without a certificate; `reason` as the metric has it."""
    async with engine.begin() as connection:
        await advance_erasure(connection, erasure.id, "deleted")
    UNCERTIFIED.labels(reason).inc()
    _log.warning("no certificate", action="uncertified", id=str(erasure.id), reason=reason)
    return "deleted"
