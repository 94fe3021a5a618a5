"""Removes quarantined events, and queues their objects for deletion.

The ledger has which ones before: after a restore they are removed at the same place among the
holds, and one that was placed later does not bring them back.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeAlias
from uuid import UUID

from sqlalchemy import and_, case, func, null, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.erasure.fence import fence_exclusive
from inference_store.erasure.mark import tombstones
from inference_store.erasure.mark.arrivals import enqueue_arrivals
from inference_store.erasure.mark.pending_deletions import Arrival
from inference_store.erasure.progress.state_changes import add_erased
from inference_store.erasure.select.quarantined_events import QuarantinedEvent
from inference_store.index import accounting, registrations
from inference_store.index.accounting import Outcome, PartitionId
from inference_store.index.inferences import among
from inference_store.index.tables import blob_reference, erasing, unsettled_event
from inference_store.inference.events import received_at_of

Body: TypeAlias = dict[str, Any]
_HERE = unsettled_event.c


def describe_removal(
    erasure: UUID, model_id: str | None, events: Sequence[QuarantinedEvent]
) -> Body:
    """Return the body of an entry `quarantine_erased`: the numbers of rows, with the uids and the
    keys of the objects of those that can be decoded.

    `model_id` None: they are of no registered model, and their objects become orphans.
    """
    rows = [
        [item.id, *(item.describe_mark() if item.event is not None and model_id else ())]
        for item in events
    ]
    return {"erasure": str(erasure), "model_id": model_id, "rows": rows}


async def apply_removal(
    connection: AsyncConnection, body: Mapping[str, Any], _: datetime, __: str
) -> int:
    """Remove the bytes of these events, and return how many there were. Repeatable.

    Their erasure cannot be cancelled any more.
    """
    number = UUID(body["erasure"])
    marks = {id: mark for id, *mark in body["rows"]}
    # The offset accounting comes first, as in the ingester: the two cannot deadlock.
    await accounting.lock_partitions(connection, await _find_partitions(connection, marks))
    await fence_exclusive(connection)
    removed = await _remove(connection, list(marks), f"erased by the erasure {number}")
    if body["model_id"] is not None:
        model = await registrations.ensure(connection, body["model_id"])
        arrivals = [_read_arrival(model, marks[id]) for id in sorted(removed) if marks[id]]
        await _enqueue_objects(connection, number, model, arrivals)
    await add_erased(connection, number, table_rows={unsettled_event.name: len(removed)})
    return len(removed)


def _read_arrival(model: int, mark: Sequence[Any]) -> Arrival:
    uid, data, response, metadata, sidecar = mark
    return model, UUID(uid), "inference", data, response, metadata, sidecar


async def _find_partitions(connection: AsyncConnection, ids: Iterable[int]) -> set[PartitionId]:
    query = select(_HERE.cluster, _HERE.topic, _HERE.epoch, _HERE.partition).distinct()
    rows = await connection.execute(query.where(_HERE.id.in_(list(ids))))
    return {PartitionId(*row) for row in rows}


async def _remove(connection: AsyncConnection, ids: Sequence[int], because: str) -> set[int]:
    """Empty the rows: a parked event is erased again, a dead letter discarded."""
    settled = case((_HERE.state == "parked", "erased_again"), else_="discarded")
    changed = unsettled_event.update().where(_HERE.id.in_(ids), _HERE.payload.is_not(None))
    changed = changed.values(
        payload=None,
        record_key=None,
        headers=[],
        inference_id=None,
        state=settled,
        detail=because,
        discard_reason=because,
        missing=null(),
        next_attempt_at=null(),
        updated_at=func.now(),
    )
    place = (_HERE.cluster, _HERE.topic, _HERE.epoch, _HERE.partition)
    removed: set[int] = set()
    changes: Mapping[PartitionId, Counter[Outcome]] = defaultdict(Counter)
    for id, state, *partition_id in await connection.execute(
        changed.returning(_HERE.id, _HERE.state, *place)
    ):
        removed.add(id)
        if state == "erased_again":
            moved = {Outcome.PARKED: -1, Outcome.ERASED_AGAIN: 1}
            changes[PartitionId(*partition_id)].update(moved)
    await accounting.change_outcomes(connection, dict(changes))
    return removed


async def _enqueue_objects(
    connection: AsyncConnection, erasure: UUID, model: int, arrivals: Sequence[Arrival]
) -> None:
    """Queue the objects that removed events name for deletion, in the transaction that removes
    them.

    Call it after the fence. An inference that is stored and stays keeps its objects.
    """
    if not arrivals:
        return
    received = {uid: received_at_of(uid) for _, uid, *_ in arrivals}
    marked = await _find_marked(connection, erasure, model, received)
    erased = await tombstones.find_erased(
        connection, [(model, *identity) for identity in received.items()]
    )
    again = {
        arrival[1]: arrival
        for arrival in arrivals
        if arrival[1] not in marked and (model, arrival[1]) in erased
    }
    await enqueue_arrivals(connection, again.values(), cause="erased_again")
    rows = [
        {"storage_key": key, "model": model, "uid": uid}
        for _, uid, _, *keys in arrivals
        if uid in marked
        for key in keys
        if key is not None and key not in marked[uid]
    ]
    if rows:
        await connection.execute(insert(blob_reference).on_conflict_do_nothing(), rows)


async def _find_marked(
    connection: AsyncConnection, erasure: UUID, model: int, uids: Iterable[UUID]
) -> dict[UUID, Sequence[str | None]]:
    """Return the inferences that the erasure has marked, with the objects that its marks name."""
    here = erasing.c
    keys = (here.data_storage_key, here.response_storage_key, here.metadata_storage_key)
    whole = and_(here.erasure == erasure, here.scope == "inference")
    query = select(here.uid, *keys).where(whole, among(erasing, model, list(uids)))
    return {uid: storage_keys for uid, *storage_keys in await connection.execute(query)}
