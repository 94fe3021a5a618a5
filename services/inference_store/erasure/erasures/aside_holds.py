"""What legal holds keep of the events that are set aside, when an erasure would take them."""

from collections.abc import Sequence
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.erasure.holds import in_force
from inference_store.erasure.holds.kept import Held
from inference_store.erasure.holds.of_events import keeping
from inference_store.erasure.mark import tombstones

from .erasure import Erasure
from .unstored import Aside, Metadatas


async def parted(
    connection: AsyncConnection,
    one: Erasure,
    model: int,
    some: Sequence[Aside],
    metadata: Metadatas,
) -> tuple[list[Aside], list[Held]]:
    """Those that no hold keeps, and the others, to be remembered. Binding after the gate.

    What is not known protects. Only of an inference that this erasure has erased, with the blobs
    that would say it, a hold that is older than the erasure has had its say before.
    """
    found = await in_force(connection, [model]) if some else []
    if not found:
        return list(some), []
    younger = [hold for hold in found if hold.in_force_at > one.since]
    uids = [each.event.uid for each in some if each.event is not None]
    gone = await tombstones.since(connection, model, uids, one.since) if uids else set()
    free: list[Aside] = []
    held: list[Held] = []
    for each in some:
        doubted = younger if each.event is not None and each.event.uid in gone else found
        keeper = keeping(found, each.event, metadata.get(each.id), doubted=doubted)
        if keeper is None:
            free.append(each)
        else:
            held.append(_row(each, keeper.id, keeper.revision))
    return free, held


def _row(aside: Aside, hold: UUID, revision: int) -> Held:
    """As `kept.remember_left_out` has it: by the number of its row, and without keys."""
    return [str(UUID(int=aside.id)), str(hold), revision, None, None, None, None]
