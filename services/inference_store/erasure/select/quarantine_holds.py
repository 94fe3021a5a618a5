"""Splits quarantined events by the legal holds that protect them from an erasure."""

from collections.abc import Callable, Mapping, Sequence
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.erasure.holds import list_in_force
from inference_store.erasure.holds.event_holds import find_event_hold
from inference_store.erasure.holds.hold import Hold
from inference_store.erasure.mark import tombstones
from inference_store.erasure.mark.held_deletions import HeldRow
from inference_store.erasure.progress.erasure import Erasure
from inference_store.index import registrations

from .quarantined_events import EventMetadata, QuarantinedEvent


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
    younger = [hold for hold in current_holds if hold.in_force_at > erasure.since]
    uids = [quarantined.event.uid for quarantined in events if quarantined.event is not None]
    erased = await tombstones.find_since(connection, model, uids, erasure.since) if uids else set()

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
    """Return a row for `record_held`: by the number of its row, and without keys."""
    return [str(UUID(int=quarantined.id)), str(hold), revision, None, None, None, None]
