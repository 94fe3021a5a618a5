"""Removes quarantined events, and queues their objects for deletion."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import Table, and_, func, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.erasure.mark import tombstones
from inference_store.erasure.mark.arrivals import enqueue_arrivals
from inference_store.erasure.select.quarantined_events import QuarantinedEvent, list_storage_keys
from inference_store.index import accounting
from inference_store.index.accounting import Outcome, PartitionId
from inference_store.index.identities import among
from inference_store.index.tables import blob_reference, dead_letter, erasing, parked_event


async def remove_events(
    connection: AsyncConnection, table: Table, events: Sequence[QuarantinedEvent], *, because: str
) -> list[QuarantinedEvent]:
    """Remove the bytes of these events, and return the events that were there. Repeatable.

    Call it after `accounting.lock_partitions`.
    """
    ids = [event.id for event in events]
    if table is dead_letter:
        removed_ids = await _discard_dead_letters(connection, ids, because)
    else:
        removed = parked_event.delete().where(parked_event.c.id.in_(ids))
        removed_ids = set(
            (await connection.execute(removed.returning(parked_event.c.id))).scalars()
        )
    removed_events = [event for event in events if event.id in removed_ids]
    if table is parked_event:
        changes: Mapping[PartitionId, Counter[Outcome]] = defaultdict(Counter)
        for event in removed_events:
            changes[event.partition_id].update({Outcome.PARKED: -1, Outcome.ERASED_AGAIN: 1})
        await accounting.change_outcomes(connection, dict(changes))
    return removed_events


async def enqueue_objects(
    connection: AsyncConnection, erasure: UUID, model: int, quarantined: Sequence[QuarantinedEvent]
) -> None:
    """Queue the objects that these events name for deletion, in the transaction that removes them.

    Call it after the fence. An inference that is stored and stays keeps its objects.
    """
    events = [item.event for item in quarantined if item.event is not None]
    if not events:
        return
    received = {event.uid: event.received_at for event in events}
    marked = await _find_marked(connection, erasure, model, received)
    erased = await tombstones.find_erased(
        connection, [(model, *identity) for identity in received.items()]
    )
    again = {e.uid: e for e in events if e.uid not in marked and (model, e.uid) in erased}
    arrivals = [(model, e.uid, "inference", *list_storage_keys(e), None) for e in again.values()]
    await enqueue_arrivals(connection, arrivals, cause="erased_again")
    rows = [
        {"storage_key": key, "model": model, "uid": event.uid}
        for event in events
        if event.uid in marked
        for key in list_storage_keys(event)
        if key is not None and key not in marked[event.uid]
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


async def _discard_dead_letters(
    connection: AsyncConnection, ids: Sequence[int], because: str
) -> set[int]:
    empty: dict[str, Any] = {
        "payload": None,
        "record_key": None,
        "headers": [],
        "inference_id": None,
    }
    values = {**empty, "detail": because, "discard_reason": because, "state": "discarded"}
    changed = update(dead_letter).where(dead_letter.c.id.in_(ids))
    changed = changed.values(**values, updated_at=func.now())
    return set((await connection.execute(changed.returning(dead_letter.c.id))).scalars())
