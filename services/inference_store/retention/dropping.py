"""Drops the partitions of a span once they are empty, or opens the span again.

The rows of `inference` are deleted first; the rows of the other tables go with their partitions. If
a partition stays, or may stay for long, they are deleted batch by batch.
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


async def drop_span(engine: AsyncEngine, span: Span, run: UUID, check: LeadershipCheck) -> bool:
    """Drop the partitions of a closed, empty span; False if it must wait for the next run.

    A long query holds a partition. Each try gives up after two seconds, so that the queries behind
    the drop do not wait long. The labels of the dropped rows are removed afterwards; after a crash
    in between, the next start of the service removes them.
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


async def reopen_span(engine: AsyncEngine, span: Span, check: LeadershipCheck) -> None:
    """Open a closed span again.

    Until then nobody writes to it or sees it, so rows without their inference are deleted before
    the fence is taken: it is held only for a moment.
    """
    for table in _CHILDREN:
        async with engine.connect() as connection:
            models = await spans.models_in(connection, span, table)
        for model in models:
            await _delete_orphan_rows(engine, table, model, span, check)
    async with engine.begin() as connection:
        await spans.reopen(connection, span)


async def delete_orphans(engine: AsyncEngine, erasure: Erasure, check: LeadershipCheck) -> None:
    """Delete the rows that an erasure leaves in spans which wait to be dropped, and whose
    inferences the run of a policy has erased already."""
    async with engine.connect() as connection:
        models = await erasures.models_of(connection, erasure)
        closed = [
            (model, span)
            for model in models
            for span in await spans.closed_before(connection, model)
        ]
    for model, span in closed:
        for table in _CHILDREN:
            await _delete_orphan_rows(engine, table, model, span, check)


async def _delete_orphan_rows(
    engine: AsyncEngine, table: Table, model: int, span: Span, check: LeadershipCheck
) -> None:
    gone = _BATCH
    while gone == _BATCH:
        await check.confirm_step()
        async with engine.begin() as connection:
            gone = await spans.delete_orphans(connection, table, model, span, limit=_BATCH)
