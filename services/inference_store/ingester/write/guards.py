"""Guards while a batch is written: models stay, and no erased inference is restored."""

from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.erasure.mark import tombstones
from inference_store.erasure.mark.pending_deletions import enqueue_arrivals
from inference_store.index import inferences, partitions, registrations
from inference_store.index.accounting import Outcome
from inference_store.index.dictionary import Dictionary
from inference_store.index.inferences import Part
from inference_store.index.writing import Indexable
from inference_store.ingester.arrivals import Arrivals
from inference_store.ingester.batch import MissingBlob, ReadRecord

from .results import item_of, labels_of


class RegistrationGone(Exception):
    """A model was removed while its events were being read: read them again."""


class LabelsGone(RegistrationGone):
    """An unused label was removed while it was being used: read the events again, to create it."""


class ErasedMeanwhile(Exception):
    """An erasure ended between our look at the tombstones and our insert: look again."""


async def keep(connection: AsyncConnection, reads: Sequence[ReadRecord]) -> None:
    """Keep the batch's registrations from being removed, and its partitions from being merged.

    Raises RegistrationGone if one is gone.
    """
    items = [read.result for read in reads if isinstance(read.result, Indexable)]
    models = {item.registration.model for item in items}
    if models and not await registrations.keep(connection, models):
        raise RegistrationGone
    await partitions.share(connection, [item.event.received_at for item in items])


async def keep_labels(
    connection: AsyncConnection, dictionary: Dictionary, reads: Sequence[ReadRecord]
) -> None:
    """Check that the batch's labels exist. Raises LabelsGone.

    Call it after `keep`, whose lock keeps labels from being removed.
    """
    used = {
        (item.registration.model, number)
        for item in (read.result for read in reads if isinstance(read.result, Indexable))
        for label in labels_of(item)
        if (number := dictionary.labels.number(item.registration.model, label)) is not None
    }
    if used and not await dictionary.has_labels(connection, used):
        raise LabelsGone


async def refuse_erased(
    connection: AsyncConnection, fresh: Sequence[ReadRecord], written: frozenset[Any]
) -> None:
    """Raise ErasedMeanwhile for an inference whose erasure ended while we inserted.

    Our insert waited for the eraser's transaction; a statement after it sees the tombstone.
    """
    new = [
        (*item.identity, item.event.received_at)
        for item in map(item_of, fresh)
        if item.identity in written
    ]
    if new and await tombstones.find_erased(connection, new):
        raise ErasedMeanwhile


async def expire_parts(
    connection: AsyncConnection, arrivals: Arrivals, written: frozenset[Any]
) -> None:
    """Queue inputs and responses that have outlived their policy on arrival for deletion."""
    late = [
        (*item.identity, part, *item.storage_keys)
        for item, part in arrivals.part_expired
        if item.identity in written
    ]
    if late:
        await enqueue_arrivals(connection, late, cause="expired_arrival")


async def erase_parts_again(
    connection: AsyncConnection, settled: Sequence[tuple[ReadRecord, Outcome]]
) -> None:
    """Queue erased inputs and responses again that a producer may have written again.

    The inferences stay, and the parts are erased or being erased. A spool writes the objects again
    before it sends an event again. An object that the inference also uses in another way stays. The
    row is not locked, because an editor of it may wait for the fence, which we hold: the eraser
    waits for the edit.
    """
    items = {
        item.identity: item
        for read, outcome in settled
        if outcome is Outcome.DUPLICATE and (item := _item_in(read)) is not None
    }
    gone = await inferences.without_parts(connection, items)
    again = [
        (*identity, part, *items[identity].storage_keys)
        for (identity, part), others in gone.items()
        if _may_be_back(items[identity], part, others)
    ]
    if again:
        await enqueue_arrivals(connection, again, cause="erased_again")


def _item_in(read: ReadRecord) -> Indexable | None:
    if isinstance(read.result, MissingBlob):
        return read.result.item
    return read.result if isinstance(read.result, Indexable) else None


def _may_be_back(item: Indexable, part: Part, others: Collection[str | None]) -> bool:
    """Check whether a deleted part may exist again.

    Without an object of its own, an input may exist in the metadata blob.
    """
    data, response, metadata, _ = item.storage_keys
    key = data if part == "input" else response
    return key not in others if key is not None else part == "input" and metadata is not None
