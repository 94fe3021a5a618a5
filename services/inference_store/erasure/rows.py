"""Deletes the rows of what was erased, all of a batch in one transaction, and separates shared
metadata.

Our own producers' metadata blob holds the request, so an erasure of the input writes it again
without the request. If others point to it too, it does not change, because a hold may protect
them: the inference gets a blob of its own, and the shared one stays until the last of the others
goes. In a segment it gets one too, and the old bytes are overwritten with those of the input.

The order is: point to the new key, and commit (`reserve_keys`, with the claim) · write it ·
`repoint_rows` with the rows. After a crash the mark is there, and all is done again; in any case
the new blob goes with the inference. No edit comes between: it waits for the mark.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final, TypeAlias
from uuid import UUID

from sqlalchemy import ARRAY, ColumnElement, Table, and_, func, literal, select, union_all
from sqlalchemy import UUID as UUID_TYPE
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.erasure import audit_chain, holds, pending_deletions
from inference_store.erasure.locks import fence_exclusive
from inference_store.erasure.object_claims import find_referenced
from inference_store.erasure.pending_deletions import PendingDeletion, remove_pending
from inference_store.erasure.progress import Erasure, add_erased
from inference_store.index import key_registry, registrations
from inference_store.index.partitions import TimePartition, TimePartitions
from inference_store.index.sidecars import among, among_keys, by_model, stored
from inference_store.index.tables import (
    PARTITIONED,
    awaiting_truth,
    blob_reference,
    erased_batch,
    erased_span,
    erased_total,
    inference,
    partition_span,
    prediction,
    retention_run,
    tombstone,
)
from inference_store.inference.events import (
    StorageKey,
    parse_stored,
    received_at_of,
    uid_floor,
)
from inference_store.inference.layout import edited_key, member_of
from inference_store.query.deadline import range_of_time

# Without those of metadata, whose rows are counted by key.
_OTHERS: Final = [t for t in reversed(PARTITIONED) if t not in key_registry.TABLES.values()]
_REFERENCED: Final = blob_reference.c.storage_key
Moves: TypeAlias = Mapping[str, str | None]
"""The new key by the old one; None: the inference has left the old one before."""


async def delete_rows(
    connection: AsyncConnection,
    stored_erasure: Erasure,
    done: Sequence[PendingDeletion],
    *,
    objects: int,
    versions: int = 0,
    bytes: int = 0,
    whole_span: bool = False,
) -> int:
    """Delete the rows and the marks of what is erased, count them, and return how many marks.

    `versions` and `bytes` went with the objects; without `bytes` the rows' sizes of inputs count.
    `whole_span`: the partitions are about to be dropped. Then only the parents' rows are deleted,
    which show the progress; what they were is recorded as a list, not by tombstones.
    """
    total, deleted_bytes = 0, bytes
    deleted_rows: Counter[str] = Counter()
    for model, uids in by_model((mark.model, mark.uid) for mark in done):
        if objects and not bytes and stored_erasure.scope in {"inference", "input"}:
            there = among(inference, model, uids), inference.c.data_deleted_at.is_(None)
            sizes = select(func.sum(inference.c.data_size)).where(*there)
            deleted_bytes += int(await connection.scalar(sizes) or 0)
        if stored_erasure.scope == "truth":
            keys = {key for mark in done if mark.model == model for key in mark.doomed}
            gone = (among(blob_reference, model, uids), among_keys(_REFERENCED, keys))
            await connection.execute(blob_reference.delete().where(*gone))
        elif stored_erasure.scope != "inference":
            await delete_part(connection, model, uids, stored_erasure.scope)
        else:
            deleted_rows += await _delete_inferences(
                connection, stored_erasure, model, uids, whole_span=whole_span
            )
        total += await remove_pending(connection, stored_erasure.id, model, uids)
    uids_done = [mark.uid for mark in done]
    await add_erased(
        connection,
        stored_erasure.id,
        inferences=total,
        objects=objects,
        versions=versions,
        bytes=deleted_bytes,
        table_rows=deleted_rows,
        received=(received_at_of(min(uids_done)), received_at_of(max(uids_done))),
    )
    if deleted_rows[inference.name]:
        total_inferences = erased_total.c.inferences + deleted_rows[inference.name]
        await connection.execute(erased_total.update().values(inferences=total_inferences))
    if stored_erasure.run is not None:
        column = retention_run.c[f"{stored_erasure.scope}s_deleted"]
        counted = retention_run.update().where(retention_run.c.id == stored_erasure.run)
        await connection.execute(counted.values({column: column + total}))
    return total


async def _delete_inferences(
    connection: AsyncConnection,
    stored_erasure: Erasure,
    model: int,
    uids: Sequence[UUID],
    *,
    whole_span: bool,
) -> Counter[str]:
    # the metadata of what went before it in a closed span is off the counts already
    present = [uid for _, uid in await stored(connection, ((model, uid) for uid in uids))]
    if whole_span:
        counts: Counter[str] = Counter()
        if present:
            await key_registry.subtract(connection, model, present)
    else:
        counted = None if len(present) == len(uids) else present
        counts = await key_registry.delete_rows(connection, model, uids, counted=counted)
    tables = (inference,) if whole_span else _OTHERS
    for table in (*tables, blob_reference, awaiting_truth):
        deleted = await connection.execute(table.delete().where(among(table, model, uids)))
        counts[table.name] = deleted.rowcount
    counts["audit"] = await audit_chain.redact_values(connection, stored_erasure.id, uids=uids)
    if whole_span:
        await pending_deletions.add_batch(connection, model, uids)
    # What expired before it was stored has left nothing that could come back.
    elif stored_erasure.cause != "expired_arrival":
        # one statement and one array: inserting a row for each costs more than the deletion
        uid = func.unnest(literal(list(uids), ARRAY(UUID_TYPE(as_uuid=True))))
        columns = ("model", "uid", "erased_at")
        # the time is selected, so that on Citus it is the coordinator's, which orders holds too
        inserted = insert(tombstone).from_select(columns, select(literal(model), uid, func.now()))
        newer = {"erased_at": inserted.excluded.erased_at}
        await connection.execute(
            inserted.on_conflict_do_update(index_elements=["model", "uid"], set_=newer)
        )
    return +counts


async def delete_part(
    connection: AsyncConnection, model: int, uids: Sequence[UUID], part: str
) -> None:
    """Record on the rows that the inputs, with their prompts, or the responses are deleted.

    What was read from them stays. References go to what inferences point to by this key alone.
    """
    here = inference.c
    keys = {
        "input": here.data_storage_key,
        "response": here.response_storage_key,
        "metadata": here.metadata_storage_key,
    }
    key = keys.pop(part)
    own = select(key).where(
        among(inference, model, uids),
        here.uid == blob_reference.c.uid,
        *(key.is_distinct_from(other) for other in keys.values()),
    )
    references = blob_reference.delete().where(among(blob_reference, model, uids))
    await connection.execute(references.where(blob_reference.c.storage_key.in_(own)))
    if part == "input":
        prompts = prediction.update().where(
            among(prediction, model, uids), prediction.c.prompt.is_not(None)
        )
        await connection.execute(prompts.values(prompt=None))
    at = here.data_deleted_at if part == "input" else here.response_deleted_at
    marked = inference.update().where(among(inference, model, uids), at.is_(None))
    await connection.execute(marked.values({at: func.now()}))


async def reserve_keys(
    connection: AsyncConnection, page: Sequence[PendingDeletion], bucket: str
) -> Moves:
    """Point each mark to a new metadata blob if others point to its own one, or if it lies in a
    segment. Call it in the fence."""
    own = {
        mark.metadata: mark
        for mark in page
        if mark.scope == "input" and mark.metadata is not None and mark.owns(mark.metadata)
    }
    shared = await find_referenced(connection, own) if own else set()
    # a member of a segment keeps its length, so that it cannot be written again without the request
    shared |= {key for key in own if member_of(parse_stored(key).key) is not None}
    current: set[tuple[int, str | None]] = set()
    for model, uids in by_model((own[key].model, own[key].uid) for key in shared):
        query = select(inference.c.metadata_storage_key).where(among(inference, model, uids))
        current |= {(model, key) for key in (await connection.execute(query)).scalars()}
    moves: dict[str, str | None] = {}
    for key in sorted(shared):
        mark = own[key]
        new = str(StorageKey(bucket, edited_key(mark.model_id or "", mark.uid)))
        moves[key] = new if (mark.model, key) in current else None
    rows = [
        {"storage_key": new, "model": own[old].model, "uid": own[old].uid}
        for old, new in moves.items()
        if new is not None
    ]
    if rows:
        await connection.execute(insert(blob_reference).on_conflict_do_nothing(), rows)
    return moves


async def repoint_rows(
    connection: AsyncConnection, done: Sequence[PendingDeletion], moves: Moves
) -> None:
    """Write the new keys of the metadata to the rows. Repeatable."""
    here = inference.c
    for mark in done:
        if mark.metadata is None or (new := moves.get(mark.metadata)) is None:
            continue
        where = (here.model == mark.model, here.uid == mark.uid)
        old = here.metadata_storage_key == mark.metadata
        await connection.execute(
            inference.update().where(*where, old).values(metadata_storage_key=new)
        )


# Closes spans of time of which nothing may be kept: closed to writers, emptied, dropped as a
# whole.
#
# A span is closed in the fence, and every writer looks for closed spans after it has taken the
# fence itself. So no row can be written between the check that found everything expired and the
# drop.

_NEW = timedelta(hours=1)
_LOOKS = 50


async def find_closed(connection: AsyncConnection, instants: Iterable[datetime]) -> set[datetime]:
    """Return the instants that no open span has: their span is being dropped, or was. After the
    fence.

    A writer parks such events, and reads the catalogue of spans again.
    """
    times = set(instants)
    if not times:
        return set()
    here = partition_span.c
    query = select(here.lo, here.hi, here.name).where(
        here.state == "open", here.lo <= max(times), here.hi > min(times)
    )
    rows = await connection.execute(query)
    partitions = TimePartitions(TimePartition(row.lo, row.hi, row.name) for row in rows)
    return set(partitions.missing(times))


async def list_ending(
    connection: AsyncConnection, *, until: datetime | None
) -> list[tuple[TimePartition, bool]]:
    """Return the spans that begin before `until`, the oldest first, and closed ones; True: it is
    closed."""
    here = partition_span.c
    is_ending = here.state == "dropping"
    if until is not None:
        is_ending |= here.lo < until
    query = select(partition_span).where(is_ending).order_by(here.lo)
    return [
        (TimePartition(row.lo, row.hi, row.name), row.state == "dropping")
        for row in await connection.execute(query)
    ]


async def list_models(
    connection: AsyncConnection, span: TimePartition, tables: Iterable[Table] = (inference,)
) -> list[int]:
    """Return the models that have inferences, or rows of any of these tables, in a span: one index
    lookup each."""
    models = await registrations.every_model(connection)
    pairs = [(table, model) for table in tables for model in models]
    with_rows: set[int] = set()
    for start in range(0, len(pairs), _LOOKS):
        # Each query names its model, so that it goes to the one shard that may have it.
        looks = [
            select(table.c.model).where(table.c.model == model, _within_span(table, span)).limit(1)
            for table, model in pairs[start : start + _LOOKS]
        ]
        with_rows.update((await connection.execute(union_all(*looks))).scalars())
    return sorted(with_rows)


async def close_span(
    connection: AsyncConnection, span: TimePartition, cutoffs: Mapping[int, datetime | None]
) -> bool:
    """Close a span if every model in it has a cutoff after its end; return whether it is closed.

    Repeatable. The models' spans are recorded as erased from here on.
    """
    await fence_exclusive(connection)
    if not await has_ended(connection, span, cutoffs):
        return False
    models = await list_models(connection, span)
    here = partition_span.c
    closing = partition_span.update().where(here.name == span.name, here.state == "open")
    if not models:
        # A new empty span was made for an event that is about to be written.
        closing = closing.where(here.created_at < func.now() - _NEW)
    changed = await connection.execute(closing.values(state="dropping"))
    for model in models if changed.rowcount else ():
        values = {"model": model, "lo": span.lo, "hi": span.hi}
        await connection.execute(insert(erased_span).values(values).on_conflict_do_nothing())
    return changed.rowcount > 0


async def has_ended(
    connection: AsyncConnection, span: TimePartition, cutoffs: Mapping[int, datetime | None]
) -> bool:
    """Return whether every model that has inferences in a span keeps none of them."""
    ends = [cutoffs.get(model) for model in await list_models(connection, span)]
    return all(end is not None and end >= span.hi for end in ends)


async def has_held(connection: AsyncConnection, span: TimePartition) -> bool:
    """Return whether a legal hold protects anything in a span. Raises HoldUnreadable.

    It is called without the fence, because it may take long: the claims find what is held a moment
    later.
    """
    if not await holds.list_in_force(connection):
        return False
    for model in await list_models(connection, span):
        where = range_of_time(model, span.lo, span.hi)
        held = await holds.build_held_condition(connection, where)
        held_rows = select(inference.c.uid).where(where.of(inference), held)
        if (await connection.execute(held_rows.limit(1))).first() is not None:
            return True
    return False


async def list_closed(connection: AsyncConnection, model: int) -> list[TimePartition]:
    """Return the closed spans of which something of a model was to be dropped."""
    here = partition_span.c
    query = select(here.lo, here.hi, here.name).distinct()
    query = query.where(here.state == "dropping", erased_span.c.model == model)
    query = query.where(erased_span.c.lo < here.hi, erased_span.c.hi > here.lo)
    return [TimePartition(row.lo, row.hi, row.name) for row in await connection.execute(query)]


async def reopen_span(connection: AsyncConnection, span: TimePartition) -> None:
    """Open a closed span again: what is left of it is kept, by a changed policy or a legal hold.

    Rows without their inference were deleted before, outside the fence.
    """
    await fence_exclusive(connection)
    for model in await list_models(connection, span):
        await _shorten_erased_span(connection, model, span)
    here = partition_span.c.name == span.name
    await connection.execute(partition_span.update().where(here).values(state="open"))


async def _shorten_erased_span(
    connection: AsyncConnection, model: int, span: TimePartition
) -> None:
    """Shorten it to the last uid on the lists: nothing after that was deleted."""
    here = erased_span.c
    where = (here.model == model, here.lo == span.lo, here.hi == span.hi)
    lists = select(erased_batch.c.last).where(
        erased_batch.c.model == model,
        erased_batch.c.first >= uid_floor(span.lo),
        erased_batch.c.first < uid_floor(span.hi),
    )
    last = await connection.scalar(lists.order_by(erased_batch.c.last.desc()).limit(1))
    deleted = await connection.execute(erased_span.delete().where(*where))
    if last is not None and deleted.rowcount:
        end = received_at_of(last) + timedelta(microseconds=1)
        values = {"model": model, "lo": span.lo, "hi": end}
        await connection.execute(insert(erased_span).values(values).on_conflict_do_nothing())


async def delete_orphans(
    connection: AsyncConnection, table: Table, model: int, span: TimePartition, *, limit: int
) -> int:
    """Delete rows whose inference was deleted first, because all of a closed span was to be
    dropped.

    Those of at most `limit` inferences; return of how many. Nobody writes in a closed span.
    """
    parent = select(inference.c.uid).where(
        inference.c.model == model, inference.c.uid == table.c.uid, _within_span(inference, span)
    )
    query = select(table.c.uid).distinct().order_by(table.c.uid).limit(limit)
    query = query.where(table.c.model == model, _within_span(table, span), ~parent.exists())
    uids = list((await connection.execute(query)).scalars())
    if uids:
        await connection.execute(table.delete().where(among(table, model, uids)))
    return len(uids)


def _within_span(table: Table, span: TimePartition) -> ColumnElement[bool]:
    return and_(table.c.uid >= uid_floor(span.lo), table.c.uid < uid_floor(span.hi))
