"""Removes what is left beside the inferences: rows of spans, labels, a subject's values in holds.

The rows of `inference` are deleted first; the rows of the other tables go with the partitions of
their span. If a partition stays, or may stay for long, they are deleted batch by batch.

The order of redaction makes every crash harmless: the revisions of holds are recorded before the
erasure forgets the subject. Then the values are removed from those whose hold is over, and in
every later turn of the service from those whose hold was released or has ended since.
"""

from collections.abc import Iterable
from datetime import timedelta
from functools import partial
from itertools import product
from uuid import UUID

import structlog
from sqlalchemy import Table
from sqlalchemy.exc import DBAPIError

from inference_store.erasure import holds, housekeeping, progress, rows, runs
from inference_store.erasure.housekeeping import Position, Redact, Redaction
from inference_store.erasure.log import SigningKey
from inference_store.erasure.progress import Erasure
from inference_store.erasure.requests import find_subject
from inference_store.erasure.runs import count_failure
from inference_store.index import partitions
from inference_store.index.database import is_transient
from inference_store.index.dictionary import (
    KEYS,
    LABELS,
    filter_unused,
    list_numbers,
    remove_unused,
)
from inference_store.index.partitions import TimePartition, list_partitions, vacuum
from inference_store.index.tables import METADATA, PARTITIONED, inference
from inference_store.platform.metrics import PARTITIONS_DROPPED

from .leader import Leader
from .quarantine_eraser import remove_erased

# Keys or labels that are checked in one step.
_NAMES = 1000
_log = structlog.get_logger()
# Rows, or revisions of holds, that are checked in one transaction.
_PAGE = 1000
_TRIES = 5
_BATCH = 5_000
_NAMED = {following.table for kind in (KEYS, LABELS) for following in kind.next_in_index}
_CHILDREN = tuple(table for table in PARTITIONED if table is not inference)
_KIND = "hold"


async def remove_residual(leader: Leader, erasure: Erasure) -> None:
    """Remove quarantined events, values of a subject, rows without an inference, and unused names.

    Names come late: those rows may have some. After all of a subject's rows, the tables are
    vacuumed. Repeatable.
    """
    takes_all = erasure.scope == "inference" and erasure.cause in {"policy", "request"}
    if takes_all:
        await remove_erased(leader, erasure)
        await remove_mentions(leader, erasure)
    if erasure.cause == "request":
        await delete_orphans(leader, erasure)
    if takes_all:
        async with leader.engine.connect() as connection:
            models = await progress.list_models(connection, erasure)
        await remove_unused_names(leader, models)
    if find_subject(erasure.asked) is not None:
        await _vacuum(leader, erasure)


async def remove_mentions(leader: Leader, erasure: Erasure) -> None:
    """Remove mentions of the subject from the audit, policies, ended erasures, views, exports and
    holds."""
    subject = find_subject(erasure.asked)
    if subject is None:
        return
    async with leader.engine.connect() as connection:
        reach = await housekeeping.find_reach(connection, erasure)
    redaction = Redaction(erasure.id, subject, reach)
    for table, (redact, first) in housekeeping.REDACTIONS.items():
        await _redact_table(leader, redaction, redact, first, table)
    await _redact_table(leader, redaction, housekeeping.record_in_holds, holds.START)
    await remove_recorded(leader)


async def _redact_table(
    leader: Leader, redaction: Redaction, redact: Redact, first: Position, table: str | None = None
) -> None:
    """Redact what mentions the subject, page by page, unless the erasure is cancelled. `table`:
    whose rows count; the revisions of holds are only recorded."""
    after: Position | None = first
    while after is not None:
        await leader.check.confirm_step()
        async with leader.engine.connect() as connection:
            redacted, after = await redact(connection, redaction, after, _PAGE)
            if redacted:
                if not await progress.begin_deleting(connection, redaction.erasure):
                    return
                if table is not None:
                    await progress.add_erased(
                        connection, redaction.erasure, table_rows={table: redacted}
                    )
                await connection.commit()


async def remove_recorded(leader: Leader) -> None:
    """Remove the recorded values from holds that are over. The certifier's key hashes them; without
    one they are removed completely."""
    hash = None if leader.certifier is None else partial(_keyed_hash, leader.certifier.key)
    redacted = _PAGE
    while redacted == _PAGE:
        await leader.check.confirm_step()
        async with leader.engine.begin() as connection:
            redacted = await holds.redact_recorded(connection, hash, limit=_PAGE)


async def _vacuum(leader: Leader, erasure: Erasure) -> None:
    async with leader.engine.connect() as connection:
        now = await progress.find_erasure(connection, erasure.id)
        spans: list[TimePartition] = []
        if now is not None and now.oldest is not None and now.newest is not None:
            end = now.newest + timedelta(microseconds=1)
            spans = await list_partitions(connection, lo=now.oldest, hi=end)
    whole = [table.name for table in METADATA.sorted_tables if table not in PARTITIONED]
    for name in (*whole, *(leaf for span in spans for leaf in span.tables)):
        await leader.check.confirm_step()
        await vacuum(leader.engine, name)


async def remove_unused_names(leader: Leader, models: Iterable[int]) -> None:
    """Remove the keys and labels of these models that no row has, page by page."""
    for model, kind in product(models, (KEYS, LABELS)):
        async with leader.engine.connect() as connection:
            numbers = await list_numbers(connection, kind, model)
        for start in range(0, len(numbers), _NAMES):
            await leader.check.confirm_step()
            some = numbers[start : start + _NAMES]
            async with leader.engine.connect() as connection:
                unused = await filter_unused(connection, kind, model, some)
            if unused:
                async with leader.engine.begin() as connection:
                    removed = await remove_unused(connection, kind, model, unused)
                action = f"{kind.column}s_removed"
                _log.info(action.replace("_", " "), action=action, model=model, count=removed)


async def drop_span(leader: Leader, span: TimePartition, run: UUID) -> bool:
    """Drop the partitions of a closed, empty span; False if it must wait for the next run.

    A long query holds a partition. Each try gives up after two seconds, so that the queries behind
    the drop do not wait long. The names that only these rows had are removed afterwards; after a
    crash in between, the next start of the service removes them.
    """
    async with leader.engine.connect() as connection:
        if await rows.list_models(connection, span):
            return False
        models = {
            model for table in _NAMED for model in await rows.list_models(connection, span, table)
        }
    for _ in range(_TRIES):
        try:
            await partitions.drop(leader.engine, span)
        except DBAPIError as error:
            if not is_transient(error) or error.connection_invalidated:
                raise
            count_failure("partition_in_use")
            _log.warning("partition is in use", action="drop_waits", span=span.name)
            continue
        async with leader.engine.begin() as connection:
            await runs.count_dropped(connection, run)
        PARTITIONS_DROPPED.inc()
        _log.info("partition dropped", action="partition_dropped", span=span.name)
        await remove_unused_names(leader, models)
        return True
    return False


async def reopen_span(leader: Leader, span: TimePartition) -> None:
    """Open a closed span again.

    Until then nobody writes to it or sees it, so rows without their inference are deleted before
    the fence is taken: it is held only for a moment.
    """
    for table in _CHILDREN:
        async with leader.engine.connect() as connection:
            models = await rows.list_models(connection, span, table)
        for model in models:
            await _delete_orphan_rows(leader, table, model, span)
    async with leader.engine.begin() as connection:
        await rows.reopen_span(connection, span)


async def delete_orphans(leader: Leader, erasure: Erasure) -> None:
    """Delete the rows that an erasure leaves in spans that wait to be dropped, if the run of a
    policy has erased their inferences already."""
    async with leader.engine.connect() as connection:
        models = await progress.list_models(connection, erasure)
        closed = [
            (model, span) for model in models for span in await rows.list_closed(connection, model)
        ]
    for model, span in closed:
        for table in _CHILDREN:
            await _delete_orphan_rows(leader, table, model, span)


async def _delete_orphan_rows(
    leader: Leader, table: Table, model: int, span: TimePartition
) -> None:
    gone = _BATCH
    while gone == _BATCH:
        await leader.check.confirm_step()
        async with leader.engine.begin() as connection:
            gone = await rows.delete_orphans(connection, table, model, span, limit=_BATCH)


def _keyed_hash(key: SigningKey, text: str) -> str:
    return key.keyed_hash(_KIND, text.encode("utf-8", "surrogatepass")).hex()
