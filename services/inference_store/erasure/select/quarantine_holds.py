"""Splits quarantined events by the legal holds that protect them from an erasure."""

from collections.abc import Mapping, Sequence
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
    free: list[QuarantinedEvent] = []
    held: list[HeldRow] = []
    for quarantined in events:
        doubted = (
            younger
            if quarantined.event is not None and quarantined.event.uid in erased
            else current_holds
        )
        keeper = find_event_hold(
            current_holds, quarantined.event, metadata.get(quarantined.id), doubted=doubted
        )
        if keeper is None:
            free.append(quarantined)
        else:
            held.append(_describe_held(quarantined, keeper.id, keeper.revision))
    return free, held


async def split_unattributed_by_hold(
    connection: AsyncConnection, events: Sequence[QuarantinedEvent], metadata: EventMetadata
) -> tuple[list[QuarantinedEvent], list[HeldRow]]:
    """Return what `split_by_hold` does, of events of no registered model.

    One without a model may be of any, so the holds of every model protect it.
    """
    current_holds = await list_in_force(connection) if events else []
    names = await registrations.names(connection, {hold.model for hold in current_holds})
    free: list[QuarantinedEvent] = []
    held: list[HeldRow] = []
    for quarantined in events:
        may_keep = [hold for hold in current_holds if _may_be_of(quarantined, hold, names)]
        keeper = find_event_hold(
            may_keep, quarantined.event, metadata.get(quarantined.id), doubted=may_keep
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
