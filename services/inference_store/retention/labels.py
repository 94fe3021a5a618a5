"""Removes the labels of a model that no prediction has any more."""

from collections.abc import Iterable

import structlog
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.erasure.housekeeping import unused_labels

from .leadership_check import LeadershipCheck

# Labels that are checked in one step.
_LABELS = 1000
_log = structlog.get_logger()


async def remove_unused_labels(
    engine: AsyncEngine, models: Iterable[int], check: LeadershipCheck
) -> None:
    """Remove the labels of these models that no prediction has, page by page."""
    for model in models:
        after: int | None = 0
        while after is not None:
            await check.confirm_step()
            after = await _remove_page(engine, model, after)


async def _remove_page(engine: AsyncEngine, model: int, after: int) -> int | None:
    async with engine.connect() as connection:
        labels = await unused_labels.find_unused(connection, model, after=after, limit=_LABELS)
    if labels.unused:
        async with engine.begin() as connection:
            removed = await unused_labels.remove_unused(connection, model, labels.unused)
        _log.info("labels removed", action="labels_removed", model=model, count=removed)
    return labels.last
