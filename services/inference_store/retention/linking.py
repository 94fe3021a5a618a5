"""Extends the audit's chain and writes the ledger's outbox while this service leads, beside its
other work."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial

import structlog
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.erasure import audit_chain
from inference_store.erasure.ledger import Ledger
from inference_store.inference.errors import ObjectStoreUnavailable, Unavailable

_EVERY_SECONDS = 1.0
_BATCH = 2_000
_log = structlog.get_logger()


@asynccontextmanager
async def link(engine: AsyncEngine, ledger: Ledger) -> AsyncIterator[None]:
    """Link committed entries and write what waits every second; at a handover two leaders wait for
    each other."""
    steps = (("audit", partial(link_all, engine)), ("ledger", ledger.write_outbox))
    tasks = [asyncio.create_task(_repeat(*step)) for step in steps]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def _repeat(what: str, step: Callable[[], Awaitable[object]]) -> None:
    while True:
        try:
            await step()
        except (DBAPIError, PoolTimeout, OSError, ObjectStoreUnavailable, Unavailable) as error:
            _log.warning("entries wait", action=what, error=type(error).__name__)
        await asyncio.sleep(_EVERY_SECONDS)


async def link_all(engine: AsyncEngine) -> None:
    """Link all committed entries, batch by batch."""
    linked = _BATCH
    while linked == _BATCH:
        async with engine.begin() as connection:
            linked = await audit_chain.link_entries(connection, limit=_BATCH)
