"""Gauges of what is to be erased, set while this service leads; a long step does not stop them."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import structlog
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.erasure.housekeeping.record_kinds import RECORD_KINDS
from inference_store.erasure.select.overdue import Overdue
from inference_store.inference.errors import StoreError
from inference_store.operations import figures
from inference_store.platform import metrics
from inference_store.platform.settings import RetentionSettings

_EVERY_SECONDS = 5.0
# Every minute: it looks for the oldest of everything.
_OVERDUE_EVERY = 12
_FOUND = ("missing", "orphans", "orphan_bytes", "young", "awaited", "unjudged")
_log = structlog.get_logger()


@asynccontextmanager
async def watching(engine: AsyncEngine, settings: RetentionSettings) -> AsyncIterator[None]:
    """Set the gauges every five seconds; afterwards another service leads, and shows them."""
    keep = {each.setting: getattr(settings, each.setting) for each in RECORD_KINDS}
    task = asyncio.create_task(_watch(engine, keep))
    metrics.LEADING.set(1)
    try:
        yield
    finally:
        metrics.LEADING.set(0)
        metrics.MARKED.set(0)
        metrics.ERASURES.clear()
        metrics.OLDEST_ERASURE.set(0)
        metrics.OVERDUE.set(0)
        metrics.AUDIT_UNLINKED.set(0)
        metrics.HOLDS.set(0)
        metrics.HELD.set(0)
        metrics.RECONCILED.clear()
        task.cancel()
        await asyncio.wait([task])


async def _watch(engine: AsyncEngine, keep: Mapping[str, float]) -> None:
    look, overdue = 0, Overdue(keep)
    while True:
        try:
            async with engine.connect() as connection:
                _show(await figures.of_retention(connection))
                _show_compared(await figures.of_reconciliation(connection))
                if look % _OVERDUE_EVERY == 0:
                    metrics.OVERDUE.set(await overdue.seconds(connection))
                look += 1
        except (DBAPIError, PoolTimeout, OSError, StoreError) as error:
            _log.debug("gauges are not fresh", action="watch", error=type(error).__name__)
        await asyncio.sleep(_EVERY_SECONDS)


def _show(found: figures.RetentionFigures) -> None:
    metrics.MARKED.set(found.marked)
    for state, count in found.erasures.items():
        metrics.ERASURES.labels(state).set(count)
    metrics.OLDEST_ERASURE.set(found.oldest_seconds)
    metrics.HOLDS.set(found.holds)
    metrics.HELD.set(found.held)
    metrics.AUDIT_UNLINKED.set(found.audit_unlinked_seconds)
    if found.last_run is not None:
        metrics.LAST_RUN.set(found.last_run.timestamp())


def _show_compared(found: figures.ReconciliationFigures | None) -> None:
    if found is None:
        return
    metrics.LAST_RECONCILIATION.set(found.ended.timestamp())
    metrics.RECONCILED.labels("difference").set(found.difference)
    for name in _FOUND:
        metrics.RECONCILED.labels(name).set(found.counts.get(name, 0))
