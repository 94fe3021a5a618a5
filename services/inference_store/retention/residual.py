"""Removes the labels of a model that no prediction has any more."""

from collections.abc import Iterable
from functools import partial
from uuid import UUID

import structlog
from sqlalchemy import Table
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.access import AccessScope
from inference_store.erasure import runs, time_partitions
from inference_store.erasure.holds import hold_filter
from inference_store.erasure.housekeeping import removed_models
from inference_store.erasure.log.keys import SigningKey
from inference_store.erasure.progress import Erasure, begin_deleting, list_models
from inference_store.erasure.requests import Subject
from inference_store.erasure.runs import count_failure
from inference_store.index import partitions
from inference_store.index.database import is_transient
from inference_store.index.partitions import TimePartition
from inference_store.index.tables import PARTITIONED, inference, prediction
from inference_store.platform.metrics import PARTITIONS_DROPPED

from .certifier import Certifier
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
        labels = await removed_models.find_unused(connection, model, after=after, limit=_LABELS)
    if labels.unused:
        async with engine.begin() as connection:
            removed = await removed_models.remove_unused(connection, model, labels.unused)
        _log.info("labels removed", action="labels_removed", model=model, count=removed)
    return labels.last


# Drops the partitions of a span once they are empty, or opens the span again.
#
# The rows of `inference` are deleted first; the rows of the other tables go with their partitions.
# If a partition stays, or may stay for long, they are deleted batch by batch.

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


# Removes a subject's values from holds, once the holds are over.
#
# The order makes every crash harmless: the revisions are recorded before the erasure forgets the
# subject. Then the values are removed from those whose hold is over, and in every later turn of the
# service from those whose hold was released or has ended since.

# Revisions in one transaction.
_REVISIONS = 1000
_KIND = "hold"


class ResidualInHolds:
    """Removes values from holds.

    The key of `certifier` hashes them; None: they are removed completely.
    """

    def __init__(
        self, engine: AsyncEngine, check: LeadershipCheck, certifier: Certifier | None
    ) -> None:
        self._engine = engine
        self._check = check
        self._certifier = certifier

    async def remove_subject(self, erasure: Erasure, subject: Subject, reach: AccessScope) -> None:
        """Record the revisions in reach that mention the subject, and remove the values.

        Nothing happens if the erasure is cancelled.
        """
        after: hold_filter.Position | None = hold_filter.START
        while after is not None:
            await self._check.confirm_step()
            async with self._engine.connect() as connection:
                recorded, after = await hold_filter.record_mentions(
                    connection,
                    (subject.key, subject.value),
                    reach,
                    after=after,
                    limit=_REVISIONS,
                )
                if recorded:
                    if not await begin_deleting(connection, erasure.id):
                        return
                    await connection.commit()
        await self.remove_recorded()

    async def remove_recorded(self) -> None:
        """Remove the recorded values from holds that are over."""
        hash = None if self._certifier is None else partial(_keyed_hash, self._certifier.key)
        redacted = _REVISIONS
        while redacted == _REVISIONS:
            await self._check.confirm_step()
            async with self._engine.begin() as connection:
                redacted = await hold_filter.redact_recorded(connection, hash, limit=_REVISIONS)


def _keyed_hash(key: SigningKey, text: str) -> str:
    return key.keyed_hash(_KIND, text.encode("utf-8", "surrogatepass")).hex()
