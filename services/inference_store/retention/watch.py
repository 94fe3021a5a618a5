"""Sets gauges about deletion while this service leads; a long step does not stop them."""

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
# Every minute, because it searches for the oldest of everything.
_OVERDUE_EVERY = 12
_FOUND = ("missing", "orphans", "orphan_bytes", "young", "awaited", "unjudged")
_log = structlog.get_logger()


@asynccontextmanager
async def set_gauges(engine: AsyncEngine, settings: RetentionSettings) -> AsyncIterator[None]:
    """Set the gauges every five seconds; afterwards another service leads, and sets them."""
    keep = {kind.setting: getattr(settings, kind.setting) for kind in RECORD_KINDS}
    task = asyncio.create_task(_set_repeatedly(engine, keep))
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
        metrics.EXPORTS_UNFINISHED.set(0)
        metrics.EXPORTS_WAITING.set(0)
        metrics.RECONCILED.clear()
        task.cancel()
        await asyncio.wait([task])


async def _set_repeatedly(engine: AsyncEngine, keep: Mapping[str, float]) -> None:
    look, overdue = 0, Overdue(keep)
    while True:
        try:
            async with engine.connect() as connection:
                _set_deletion_gauges(await figures.read_retention(connection))
                _set_reconciliation_gauges(await figures.read_reconciliation(connection))
                if look % _OVERDUE_EVERY == 0:
                    metrics.OVERDUE.set(await overdue.measure_seconds(connection))
                look += 1
        except (DBAPIError, PoolTimeout, OSError, StoreError) as error:
            _log.debug("gauges are not fresh", action="watch", error=type(error).__name__)
        await asyncio.sleep(_EVERY_SECONDS)


def _set_deletion_gauges(figures_now: figures.RetentionFigures) -> None:
    metrics.MARKED.set(figures_now.marked)
    for state, count in figures_now.erasures.items():
        metrics.ERASURES.labels(state).set(count)
    metrics.OLDEST_ERASURE.set(figures_now.oldest_seconds)
    metrics.HOLDS.set(figures_now.holds)
    metrics.HELD.set(figures_now.held)
    metrics.EXPORTS_UNFINISHED.set(figures_now.exports)
    metrics.EXPORTS_WAITING.set(figures_now.exports_waiting)
    metrics.AUDIT_UNLINKED.set(figures_now.audit_unlinked_seconds)
    if figures_now.last_run is not None:
        metrics.LAST_RUN.set(figures_now.last_run.timestamp())


def _set_reconciliation_gauges(figures_now: figures.ReconciliationFigures | None) -> None:
    if figures_now is None:
        return
    metrics.LAST_RECONCILIATION.set(figures_now.ended.timestamp())
    metrics.RECONCILED.labels("difference").set(figures_now.difference)
    for name in _FOUND:
        metrics.RECONCILED.labels(name).set(figures_now.counts.get(name, 0))
