"""Dropping a span's partitions, when nothing is left in them."""

from uuid import UUID

import structlog
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.store import partitions
from inference_store.store.database import is_trouble
from inference_store.store.metrics import PARTITIONS_DROPPED
from inference_store.store.partitions import Span
from inference_store.store.retention import runs, spans
from inference_store.store.retention.failures import failed

_log = structlog.get_logger()
_TRIES = 5


async def drop(engine: AsyncEngine, span: Span, run: UUID) -> bool:
    """Drop the partitions of a closed, emptied span; False: not now, the next run tries again.

    A long query holds a partition; each try gives up after two seconds, so that the queries
    that queue behind the drop do not wait long.
    """
    async with engine.connect() as connection:
        if await spans.models_in(connection, span):
            return False
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
        return True
    return False
