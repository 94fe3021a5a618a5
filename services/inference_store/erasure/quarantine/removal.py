"""Removes quarantined events that no hold protects, and queues their objects for deletion.

Of their response only the metadata is read, and it may be out of reach: what is unknown
protects. The ledger has which ones go before: after a restore they are removed at the same place
among the holds, and one that was placed later does not bring them back.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeAlias
from uuid import UUID

from sqlalchemy import and_, case, func, null, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.erasure.holds import list_in_force
from inference_store.erasure.holds.conditions import is_held, resolve_filter
from inference_store.erasure.holds.hold import Hold
from inference_store.erasure.locks import fence_exclusive
from inference_store.erasure.mark import tombstones
from inference_store.erasure.mark.held_deletions import HeldRow
from inference_store.erasure.mark.pending_deletions import Arrival, enqueue_arrivals
from inference_store.erasure.progress import Erasure, add_erased
from inference_store.index import accounting, registrations
from inference_store.index.accounting import Outcome, PartitionId
from inference_store.index.inferences import among
from inference_store.index.tables import blob_reference, erasing, unsettled_event
from inference_store.inference.errors import StoreError
from inference_store.inference.events import InferenceEvent, received_at_of
from inference_store.inference.metadata import Metadata
from inference_store.query.facts import NOT_IN_EVENTS, build_event_facts
from inference_store.query.filters import typed
from inference_store.query.filters.certain import find_doubts
from inference_store.query.filters.typed import Predicate

from .events import EventMetadata, QuarantinedEvent

Body: TypeAlias = dict[str, Any]
_HERE = unsettled_event.c


async def split_by_hold(
    connection: AsyncConnection,
    erasure: Erasure,
    model: int,
    events: Sequence[QuarantinedEvent],
    metadata: EventMetadata,
) -> tuple[list[QuarantinedEvent], list[HeldRow]]:
    """Return the events that no hold protects, and the others, to be recorded. Binding after the
    fence.

    What is unknown protects. There is one exception: if this erasure has erased the inference, with
    the blobs that would tell, a hold that is older than the erasure has been applied before.
    """
    current_holds = await list_in_force(connection, [model]) if events else []
    if not current_holds:
        return list(events), []
    since = erasure.in_force_at
    younger = [hold for hold in current_holds if hold.in_force_at > since]
    uids = [quarantined.event.uid for quarantined in events if quarantined.event is not None]
    erased = await tombstones.find_since(connection, model, uids, since) if uids else set()

    def choose_doubted(quarantined: QuarantinedEvent) -> Sequence[Hold]:
        is_erased = quarantined.event is not None and quarantined.event.uid in erased
        return younger if is_erased else current_holds

    return _split(events, metadata, lambda _: current_holds, choose_doubted)


async def split_unattributed_by_hold(
    connection: AsyncConnection, events: Sequence[QuarantinedEvent], metadata: EventMetadata
) -> tuple[list[QuarantinedEvent], list[HeldRow]]:
    """Return what `split_by_hold` does, of events of no registered model.

    One without a model may be of any, so the holds of every model protect it.
    """
    current_holds = await list_in_force(connection) if events else []
    names = await registrations.names(connection, {hold.model for hold in current_holds})

    def choose_holds(quarantined: QuarantinedEvent) -> Sequence[Hold]:
        return [hold for hold in current_holds if _may_be_of(quarantined, hold, names)]

    return _split(events, metadata, choose_holds, choose_holds)


def _split(
    events: Sequence[QuarantinedEvent],
    metadata: EventMetadata,
    choose_holds: Callable[[QuarantinedEvent], Sequence[Hold]],
    choose_doubted: Callable[[QuarantinedEvent], Sequence[Hold]],
) -> tuple[list[QuarantinedEvent], list[HeldRow]]:
    """Split events by the holds that may protect each, of which `choose_doubted` protect what is
    unknown."""
    free: list[QuarantinedEvent] = []
    held: list[HeldRow] = []
    for quarantined in events:
        keeper = find_event_hold(
            choose_holds(quarantined),
            quarantined.event,
            metadata.get(quarantined.id),
            doubted=choose_doubted(quarantined),
        )
        if keeper is None:
            free.append(quarantined)
        else:
            held.append(_describe_held(quarantined, keeper.id, keeper.revision))
    return free, held


def _may_be_of(quarantined: QuarantinedEvent, hold: Hold, names: Mapping[int, str]) -> bool:
    """Return whether the event may be of the hold's model, which may be registered by now."""
    if hold.model is None or quarantined.model_id is None:
        return True
    return names.get(hold.model) in (None, quarantined.model_id)


def _describe_held(quarantined: QuarantinedEvent, hold: UUID, revision: int) -> HeldRow:
    return [str(UUID(int=quarantined.id)), str(hold), revision, None, None, None, None]


def find_event_hold(
    holds: Sequence[Hold],
    event: InferenceEvent | None,
    metadata: Metadata | None,
    *,
    doubted: Sequence[Hold],
) -> Hold | None:
    """Return the first of the holds of its model that protects an event; None if none does, or if
    the event can be neither decoded nor read.

    `doubted`: the holds that also protect it if nobody knows whether they match.
    """
    for hold in holds:
        answer = _holds_event(hold, event, metadata)
        if answer or (answer is None and hold in doubted):
            return hold
    return None


def _holds_event(
    hold: Hold, event: InferenceEvent | None, metadata: Metadata | None
) -> bool | None:
    try:
        if event is None or not _is_decidable(resolve_filter(hold.filter), metadata):
            return None
        known_metadata = metadata or Metadata()
        return is_held(
            hold, build_event_facts(event, known_metadata), (*event.flags, *known_metadata.flags)
        )
    except (StoreError, ValueError, KeyError, TypeError):
        return None


def _is_decidable(predicate: Predicate, metadata: Metadata | None) -> bool:
    doubts = find_doubts(predicate)
    if "predictions" in doubts or ("metadata" in doubts and metadata is None):
        return False
    properties = {
        node.name for node in typed.iterate_nodes(predicate) if isinstance(node, typed.Property)
    }
    return properties.isdisjoint(NOT_IN_EVENTS)


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
    here = erasing.c
    keys = (here.data_storage_key, here.response_storage_key, here.metadata_storage_key)
    whole = and_(here.erasure == erasure, here.scope == "inference")
    query = select(here.uid, *keys).where(whole, among(erasing, model, list(uids)))
    return {uid: storage_keys for uid, *storage_keys in await connection.execute(query)}
