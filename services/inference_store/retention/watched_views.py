"""Reads the numbers of watched views while this service leads, one after the other, and shows them
as gauges. Those of a view that is gone, changed or erased vanish."""

import asyncio
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, TypeAlias
from uuid import UUID

import structlog
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.index.database import is_transient
from inference_store.index.saved_views import SavedView, list_watched
from inference_store.inference.errors import StoreError
from inference_store.inference.iso_durations import read_duration
from inference_store.platform.metrics import SAVED_QUERY, SAVED_QUERY_AT, SAVED_QUERY_FAILED
from inference_store.query.deadline import Deadline, OutOfTime
from inference_store.query.watched import read_watched

_log = structlog.get_logger()

OF_VIEWS: Final = (SAVED_QUERY, SAVED_QUERY_AT, SAVED_QUERY_FAILED)
"""The gauges of watched views."""
_LOOK_SECONDS: Final = 5.0
_QUERY_SECONDS: Final = 30.0
_Key: TypeAlias = tuple[UUID, int]
"""A view, and its revision."""


@dataclass(slots=True)
class _Shown:
    """`labels`: of its series; `due`: when it is read again, on the monotonic clock."""

    labels: tuple[str, str, str]
    due: float


async def watch_views(engine: AsyncEngine) -> None:
    """Read each watched view when it is due, the one that has waited longest first.

    They are listed before each, so that an erased one vanishes while others are read.
    """
    shown: dict[_Key, _Shown] = {}
    while True:
        view: SavedView | None = None
        try:
            async with engine.connect() as connection:
                views = {(view.id, view.revision): view for view in await list_watched(connection)}
            _drop(shown, [key for key in shown if key not in views])
            due = {key: shown[key].due if key in shown else 0.0 for key in views}
            first = min(due, key=due.__getitem__, default=None)
            if first is not None and due[first] <= time.monotonic():
                view = views[first]
                shown[first] = await _read(engine, view)
        except (DBAPIError, PoolTimeout, OSError) as error:
            _log.debug("watched views wait", action="watch_views", error=type(error).__name__)
            view = None
        if view is None:
            await asyncio.sleep(_LOOK_SECONDS)


def _drop(shown: dict[_Key, _Shown], gone: list[_Key]) -> None:
    for key in gone:
        labels = shown.pop(key).labels
        for gauge in OF_VIEWS:
            gauge.remove(*labels)


async def _read(engine: AsyncEngine, view: SavedView) -> _Shown:
    """Set the gauges of a view. If the database is away they stay, and its error is raised."""
    labels = str(view.id), view.model_id, view.name or ""
    now = datetime.now(UTC)
    try:
        async with engine.connect() as connection:
            deadline = Deadline.after(_QUERY_SECONDS)
            number = await read_watched(connection, view, deadline, now=now)
    except (StoreError, OutOfTime, DBAPIError, ValueError) as error:
        if isinstance(error, DBAPIError) and is_transient(error):
            raise
        _log.warning(
            "watched view", action="watch_failed", view=str(view.id), error=type(error).__name__
        )
        # an old number would say that all is as it was
        SAVED_QUERY.remove(*labels)
        SAVED_QUERY_FAILED.labels(*labels).set(1)
    else:
        SAVED_QUERY.labels(*labels).set(number)
        SAVED_QUERY_AT.labels(*labels).set(now.timestamp())
        SAVED_QUERY_FAILED.labels(*labels).set(0)
    every = read_duration(view.watch.every) if view.watch else None
    assert every is not None, "it was checked"
    return _Shown(labels, time.monotonic() + every.exact.total_seconds())
