"""Dropping a span's partitions, when nothing is left in them; or opening it again.

Of a span that is to be dropped the inferences' own rows go first, and the others with the
partitions. Where these stay, or may stay for long, the others go batch by batch.
"""

from uuid import UUID

import structlog
from sqlalchemy import Table
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.erasure import erasures, runs
from inference_store.erasure.erasures import Erasure
from inference_store.erasure.failures import failed
from inference_store.erasure.select import spans
from inference_store.index import partitions
from inference_store.index.database import is_trouble
from inference_store.index.partitions import Span
from inference_store.index.tables import PARTITIONED, inference, prediction
from inference_store.platform.metrics import PARTITIONS_DROPPED

from .labels import remove_unused_labels
from .leadership_check import LeadershipCheck

_log = structlog.get_logger()
_TRIES = 5
_BATCH = 5_000
_CHILDREN = tuple(table for table in PARTITIONED if table is not inference)


async def drop(engine: AsyncEngine, span: Span, run: UUID, check: LeadershipCheck) -> bool:
    """Drop the partitions of a closed, emptied span; False: not now, the next run tries again.

    A long query holds a partition; each try gives up after two seconds, so that the queries
    that queue behind the drop do not wait long. The labels of what was in them go afterwards; a
    crash between leaves them to the service's next start.
    """
    async with engine.connect() as connection:
        if await spans.models_in(connection, span):
            return False
        labelled = await spans.models_in(connection, span, prediction)
    for _ in range(_TRIES):
        try:
            await partitions.drop(engine, span)
        except DBAPIError as error:
            if not is_trouble(error) or error.connection_invalidated:
                raise
            failed("partition_in_use")
            _log.warning("partition is in use", action="drop_waits", span=span.name)
            continue
        async with engine.begin() as connection:
            await runs.dropped(connection, run)
        PARTITIONS_DROPPED.inc()
        _log.info("partition dropped", action="partition_dropped", span=span.name)
        await remove_unused_labels(engine, labelled, check)
        return True
    return False


async def reopen(engine: AsyncEngine, span: Span, check: LeadershipCheck) -> None:
    """Open a closed span again. Until then nobody writes in it or sees it, so that rows without
    their inference go before the gate is taken: it is held for a moment only."""
    for table in _CHILDREN:
        async with engine.connect() as connection:
            models = await spans.models_in(connection, span, table)
        for model in models:
            await _delete_orphans(engine, table, model, span, check)
    async with engine.begin() as connection:
        await spans.reopen(connection, span)


async def delete_orphans_of(engine: AsyncEngine, one: Erasure, check: LeadershipCheck) -> None:
    """What was asked for leaves no rows in spans that wait to be dropped, where a policy's run
    has erased their inferences already."""
    async with engine.connect() as connection:
        models = await erasures.models_of(connection, one)
        closed = [
            (model, span)
            for model in models
            for span in await spans.closed_before(connection, model)
        ]
    for model, span in closed:
        for table in _CHILDREN:
            await _delete_orphans(engine, table, model, span, check)


async def _delete_orphans(
    engine: AsyncEngine, table: Table, model: int, span: Span, check: LeadershipCheck
) -> None:
    gone = _BATCH
    while gone == _BATCH:
        await check.confirm_step()
        async with engine.begin() as connection:
            gone = await spans.delete_orphans(connection, table, model, span, limit=_BATCH)
