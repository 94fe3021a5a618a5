"""Removes what is left beside the inferences: rows of spans, labels, a subject's values in holds;
below: dead letters and parked events.

The rows of `inference` are deleted first; the rows of the other tables go with the partitions of
their span. If a partition stays, or may stay for long, they are deleted batch by batch.

The order of redaction makes every crash harmless: the revisions of holds are recorded before the
erasure forgets the subject. Then the values are removed from those whose hold is over, and in
every later turn of the service from those whose hold was released or has ended since.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from itertools import product
from typing import Any
from uuid import UUID

import structlog
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.erasure import holds, housekeeping, progress, quarantine, rows, runs
from inference_store.erasure.batches import describe_entry
from inference_store.erasure.held_deletions import QUARANTINE_SCOPE, record_held
from inference_store.erasure.housekeeping import Position, Redaction, redact_page
from inference_store.erasure.log import SigningKey
from inference_store.erasure.progress import Erasure, begin_deleting, list_models
from inference_store.erasure.quarantine import QuarantinedEvent
from inference_store.erasure.requests import find_subject
from inference_store.erasure.runs import count_failure
from inference_store.index import key_registry, partitions, registrations
from inference_store.index.database import is_transient
from inference_store.index.dictionary import (
    KEYS,
    LABELS,
    NameKind,
    filter_unused,
    list_numbers,
    remove_unused,
)
from inference_store.index.partitions import TimePartition, list_partitions, vacuum
from inference_store.index.tables import METADATA, PARTITIONED, inference, unsettled_event
from inference_store.platform.failpoints import failpoint
from inference_store.platform.metrics import PARTITIONS_DROPPED

from .leader import ACTOR, Leader

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
            models = await list_models(connection, erasure)
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
    for table, (_, first) in housekeeping.REDACTED.items():
        after: Position | None = first
        while after is not None:
            async with leader.connect() as connection:
                redacted, after = await redact_page(connection, redaction, table, after, _PAGE)
                if redacted:
                    if not await begin_deleting(connection, erasure.id):
                        return  # it is cancelled
                    if table != housekeeping.RECORDED:
                        counts = {table: redacted}
                        await progress.add_erased(connection, erasure.id, table_rows=counts)
                    await connection.commit()
    await remove_recorded(leader)


async def remove_recorded(leader: Leader) -> None:
    """Remove the recorded values from holds that are over. The certifier's key hashes them; without
    one they are removed completely."""
    hash = None if leader.certifier is None else partial(_keyed_hash, leader.certifier.key)
    await leader.repeat(partial(holds.redact_recorded, hash=hash, limit=_PAGE))


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
    """Remove the keys and labels of these models that no row has, page by page.

    If batches are always being written, a page is left to the next call.
    """
    for model, kind in product(models, (KEYS, LABELS)):
        async with leader.engine.connect() as connection:
            numbers = await list_numbers(connection, kind, model)
        for start in range(0, len(numbers), _NAMES):
            await leader.check.confirm_step()
            some = numbers[start : start + _NAMES]
            async with leader.engine.connect() as connection:
                # each statement for itself: a transaction locks every partition that it reads
                await connection.execution_options(isolation_level="AUTOCOMMIT")
                unused = await filter_unused(connection, kind, model, some)
            if unused:
                await _remove_names(leader, kind, model, unused)


async def _remove_names(leader: Leader, kind: NameKind, model: int, unused: Sequence[int]) -> None:
    about = {"model": model, "kind": kind.column}
    try:
        async with leader.engine.begin() as connection:
            await connection.execute(text("SET LOCAL lock_timeout = '2s'"))
            removed = await remove_unused(connection, kind, model, unused)
    except DBAPIError as error:
        if not is_transient(error) or error.connection_invalidated:
            raise
        _log.warning("names are in use", action="names_wait", **about)
        return
    _log.info("names removed", action="names_removed", count=removed, **about)


async def remove_emptied_names(leader: Leader) -> None:
    """Remove the unused names of models that have lost the last value of a key, by an edit too."""
    async with leader.engine.connect() as connection:
        models = await key_registry.list_emptied(connection)
    await remove_unused_names(leader, models)


async def drop_span(leader: Leader, span: TimePartition, run: UUID) -> bool:
    """Drop the partitions of a closed, empty span; False if it must wait for the next run.

    A long query holds a partition. Each try gives up after two seconds, so that the queries behind
    the drop do not wait long. The names that only these rows had are removed afterwards; after a
    crash in between, the next start of the service removes them.
    """
    async with leader.engine.connect() as connection:
        if await rows.list_models(connection, span):
            return False
        models = await rows.list_models(connection, span, _NAMED)
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
    async with leader.engine.connect() as connection:
        models = await rows.list_models(connection, span, _CHILDREN)
    for model in models:
        await _delete_orphan_rows(leader, model, span)
    async with leader.engine.begin() as connection:
        await rows.reopen_span(connection, span)


async def delete_orphans(leader: Leader, erasure: Erasure) -> None:
    """Delete the rows that an erasure leaves in spans that wait to be dropped, if the run of a
    policy has erased their inferences already."""
    async with leader.engine.connect() as connection:
        models = await list_models(connection, erasure)
        closed = [
            (model, span) for model in models for span in await rows.list_closed(connection, model)
        ]
    for model, span in closed:
        await _delete_orphan_rows(leader, model, span)


async def _delete_orphan_rows(leader: Leader, model: int, span: TimePartition) -> None:
    for table in _CHILDREN:
        orphans = partial(rows.delete_orphans, table=table, model=model, span=span, limit=_BATCH)
        await leader.repeat(orphans)


def _keyed_hash(key: SigningKey, text: str) -> str:
    return key.keyed_hash(_KIND, text.encode("utf-8", "surrogatepass")).hex()


# Erases dead letters and parked events of erased inferences, with their bytes and objects.
#
# As soon as one is removed, the erasure cannot be cancelled. Events that a legal hold protects
# stay, and the erasure is then partly held. A search reads outside of any transaction, and writes
# marks for the events of a subject to the ledger. Then the ledger has which events are removed,
# of those that no hold protects by then: no hold is placed in the ledger's turn. Its effect, in
# one transaction after the locks of the offset accounting and the fence, removes them and queues
# their objects. After a crash before that, everything is searched again.


async def remove_subject(leader: Leader, erasure: Erasure) -> None:
    """Mark the events of the erasure's subject, so that their objects are deleted, and remove
    them."""
    criteria = erasure.asked or {}
    names = await _find_names(leader, erasure)
    search = partial(
        quarantine.iterate_mentions, leader.connect, leader.blobs, criteria, names.values()
    )
    for model, name in sorted(names.items()):
        of_model = unsettled_event.c.model_id == name
        async for events in search(of_model, types_of=list(names)):
            async with leader.engine.connect() as connection:
                free, _ = await quarantine.split_by_hold(
                    connection, events, model=model, since=erasure.in_force_at
                )
                marks = [item.describe_mark() for item in free if item.event is not None]
                batch = await describe_entry(connection, erasure, model, marks)
            if marks:
                await leader.ledger.write("erasure_batch", batch, actor=ACTOR)
            if not await _remove(leader, erasure, model, events):
                return
    # what is of no registered model has no mark: its objects become orphans
    beside = quarantine.match_unattributed(criteria, names.values())
    async for events in search(beside):
        if not await _remove(leader, erasure, None, events):
            return


async def remove_erased(leader: Leader, erasure: Erasure) -> None:
    """Remove events of inferences that were erased, by this erasure or before it."""
    ids = frozenset((erasure.asked or {}).get("inference_ids", ()))
    buckets = leader.blobs.buckets
    for model, name in sorted((await _find_names(leader, erasure)).items()):
        of_model = unsettled_event.c.model_id == name
        async for page in quarantine.iterate_pages(leader.connect, of_model, buckets):
            async with leader.engine.connect() as connection:
                events = await quarantine.filter_erased(connection, model, page, ids)
                has_holds = bool(events) and bool(await holds.list_in_force(connection, [model]))
            if has_holds:
                events = await asyncio.to_thread(quarantine.load_metadata, leader.blobs, events)
            if not await _remove(leader, erasure, model, events):
                return


async def _find_names(leader: Leader, erasure: Erasure) -> Mapping[int, str]:
    async with leader.engine.connect() as connection:
        return await registrations.names(connection, await list_models(connection, erasure))


async def _remove(
    leader: Leader, erasure: Erasure, model: int | None, events: list[QuarantinedEvent]
) -> bool:
    """Remove the events that no hold protects; False if the erasure was cancelled meanwhile.

    `model` None: they are of none.
    """
    if not events:
        return True
    failpoint("retention.aside.take.before")
    about = (erasure, model, events)
    async with leader.engine.begin() as connection:
        free = await _keep_held(connection, *about)
        if free and not await begin_deleting(connection, erasure.id):
            return False
        name = None
        if model is not None:
            name = (await registrations.names(connection, {model})).get(model)

    async def describe(connection: AsyncConnection) -> dict[str, Any]:
        return quarantine.describe_removal(erasure.id, name, await _keep_held(connection, *about))

    removed = 0
    if free:
        removed = await leader.ledger.write("quarantine_erased", describe, actor=ACTOR)
    failpoint("retention.aside.take.after")
    counts = {"count": removed, "held": len(events) - len(free)}
    _log.info("quarantined events removed", action="erased_aside", id=str(erasure.id), **counts)
    return True


async def _keep_held(
    connection: AsyncConnection,
    erasure: Erasure,
    model: int | None,
    events: list[QuarantinedEvent],
) -> list[QuarantinedEvent]:
    free, held = await quarantine.split_by_hold(
        connection, events, model=model, since=erasure.in_force_at
    )
    if model is None:
        # it stands under the erasure's first model, so that a waiver can name it
        model = min(await list_models(connection, erasure), default=0)
    await record_held(connection, erasure.id, model, QUARANTINE_SCOPE, held)
    return free
