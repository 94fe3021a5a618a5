"""What must hold while a batch is written: models that stay, and nothing that was erased."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.ingester.arrivals import Arrivals
from inference_store.ingester.batch import Read
from inference_store.store import registrations
from inference_store.store.indexing import Indexable
from inference_store.store.retention import erasures, tombstones

from .results import item_of


class RegistrationGone(Exception):
    """A model was removed while its events were being read: read them again."""


class ErasedMeanwhile(Exception):
    """An erasure ended between our look at the tombstones and our insert: look again."""


async def keep_registrations(connection: AsyncConnection, reads: Sequence[Read]) -> None:
    """Hold the batch's registrations. Raises RegistrationGone where one is no more."""
    models = {r.result.registration.model for r in reads if isinstance(r.result, Indexable)}
    if models and not await registrations.keep(connection, models):
        raise RegistrationGone


async def refuse_erased(
    connection: AsyncConnection, fresh: Sequence[Read], written: frozenset[Any]
) -> None:
    """Raise ErasedMeanwhile for an inference whose erasure ended while we inserted.

    Our insert waited for the eraser's transaction; a statement after it sees the tombstone.
    """
    new = [
        (*item.identity, item.event.received_at)
        for item in map(item_of, fresh)
        if item.identity in written
    ]
    if new and await tombstones.find(connection, new):
        raise ErasedMeanwhile


async def expire_parts(
    connection: AsyncConnection, arrivals: Arrivals, written: frozenset[Any]
) -> None:
    """Inputs and responses that have outlived their policy on arrival: the object is deleted."""
    late = [
        (*item.identity, part, *item.storage_keys)
        for item, part in arrivals.part_expired
        if item.identity in written
    ]
    if late:
        await erasures.enqueue_arrivals(connection, late, cause="expired_arrival")
