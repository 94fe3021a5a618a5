"""Drops the partitions of a span once they are empty, or opens the span again.

The rows of `inference` are deleted first; the rows of the other tables go with their partitions. If
a partition stays, or may stay for long, they are deleted batch by batch.
"""

from uuid import UUID

import structlog
from sqlalchemy import Table
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.erasure import runs
from inference_store.erasure.progress.erasure import Erasure, list_models
from inference_store.erasure.select import time_partitions
from inference_store.erasure.verify.failure_reasons import count_failure
from inference_store.index import partitions
from inference_store.index.database import is_transient
from inference_store.index.partitions import TimePartition
from inference_store.index.tables import PARTITIONED, inference, prediction
from inference_store.platform.metrics import PARTITIONS_DROPPED

from .labels import remove_unused_labels
from .leadership_check import LeadershipCheck

_log = structlog.get_logger()
_TRIES = 5
_BATCH = 5_000
_CHILDREN = tuple(table for table in PARTITIONED if table is not inference)


async def drop_span(
    engine: AsyncEngine, span: TimePartition, run: UUID, check: LeadershipCheck
) -> bool:
    """Drop the partitions of a closed, empty span; False if it must wait for the next run.

    A long query holds a partition. Each try gives up after two seconds, so that the queries behind
    the drop do not wait long. The labels of the dropped rows are removed afterwards; after a crash
    in between, the next start of the service removes them.
    """
    async with engine.connect() as connection:
        if await time_partitions.list_models(connection, span):
            return False
        labelled = await time_partitions.list_models(connection, span, prediction)
    for _ in range(_TRIES):
        try:
            await partitions.drop(engine, span)
        except DBAPIError as error:
            if not is_transient(error) or error.connection_invalidated:
                raise
            count_failure("partition_in_use")
            _log.warning("partition is in use", action="drop_waits", span=span.name)
            continue
        async with engine.begin() as connection:
            await runs.count_dropped(connection, run)
        PARTITIONS_DROPPED.inc()
        _log.info("partition dropped", action="partition_dropped", span=span.name)
        await remove_unused_labels(engine, labelled, check)
        return True
    return False


async def reopen_span(engine: AsyncEngine, span: TimePartition, check: LeadershipCheck) -> None:
    """Open a closed span again.

    Until then nobody writes to it or sees it, so rows without their inference are deleted before
    the fence is taken: it is held only for a moment.
    """
    for table in _CHILDREN:
        async with engine.connect() as connection:
            models = await time_partitions.list_models(connection, span, table)
        for model in models:
            await _delete_orphan_rows(engine, table, model, span, check)
    async with engine.begin() as connection:
        await time_partitions.reopen_span(connection, span)


async def delete_orphans(engine: AsyncEngine, erasure: Erasure, check: LeadershipCheck) -> None:
    """Delete the rows that an erasure leaves in spans that wait to be dropped, if the run of a
    policy has erased their inferences already."""
    async with engine.connect() as connection:
        models = await list_models(connection, erasure)
        closed = [
            (model, span)
            for model in models
            for span in await time_partitions.list_closed(connection, model)
        ]
    for model, span in closed:
        for table in _CHILDREN:
            await _delete_orphan_rows(engine, table, model, span, check)


async def _delete_orphan_rows(
    engine: AsyncEngine, table: Table, model: int, span: TimePartition, check: LeadershipCheck
) -> None:
    gone = _BATCH
    while gone == _BATCH:
        await check.confirm_step()
        async with engine.begin() as connection:
            gone = await time_partitions.delete_orphans(
                connection, table, model, span, limit=_BATCH
            )
