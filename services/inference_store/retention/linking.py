"""Extends the audit's chain while this service leads, beside its other work."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import structlog
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.erasure import audit_chain

_EVERY_SECONDS = 1.0
_BATCH = 2_000
_log = structlog.get_logger()


@asynccontextmanager
async def link_audit(engine: AsyncEngine) -> AsyncIterator[None]:
    """Link committed entries every second; at a handover two leaders wait for each other."""
    task = asyncio.create_task(_link_repeatedly(engine))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


async def _link_repeatedly(engine: AsyncEngine) -> None:
    while True:
        try:
            await link_all(engine)
        except (DBAPIError, PoolTimeout, OSError) as error:
            _log.warning("audit is not chained", action="audit", error=type(error).__name__)
        await asyncio.sleep(_EVERY_SECONDS)


async def link_all(engine: AsyncEngine) -> None:
    """Link all committed entries, batch by batch."""
    linked = _BATCH
    while linked == _BATCH:
        async with engine.begin() as connection:
            linked = await audit_chain.link_entries(connection, limit=_BATCH)
