"""The outcome of each record of a batch, and why."""

from collections.abc import Sequence

from inference_store.index.accounting import Outcome
from inference_store.index.database import cause_of
from inference_store.index.sidecars import Sidecar
from inference_store.index.unsettled import Rejection
from inference_store.index.writing import Indexable
from inference_store.ingester.arrivals import Arrivals
from inference_store.ingester.batch import MissingBlob, ReadRecord


def sidecars_of(stored: Sequence[tuple[ReadRecord, Outcome]]) -> list[Sidecar]:
    """Return the sidecars of new inferences; those stored before have theirs already."""
    items = [item_of(read) for read, outcome in stored if outcome is Outcome.STORED]
    return [item.sidecar for item in items if item.sidecar is not None]


def settled_of(arrivals: Arrivals) -> list[tuple[ReadRecord, Outcome]]:
    """Return the outcomes of the events that this batch does not store."""
    return [
        *arrivals.settled,
        *((read, Outcome.DEAD) for read, _ in arrivals.dead),
        *((read, Outcome.PARKED) for read, _ in arrivals.missing),
    ]


def item_of(read: ReadRecord) -> Indexable:
    """Return the inference of a record that can be stored."""
    if not isinstance(read.result, Indexable):
        raise AssertionError("only indexable records are stored")
    return read.result


def labels_of(item: Indexable) -> set[str]:
    """Return the labels of its predictions."""
    labels = (prediction.label for prediction in item.predictions.items or ())
    return {label for label in labels if label is not None}


def waits(missing: MissingBlob) -> Rejection:
    """Return the reason for which an event is parked."""
    detail = missing.detail or f"{missing.storage_key} is not there yet"
    return Rejection(missing.reason, detail, missing.model_id, missing.inference_id)


def unindexable(read: ReadRecord, error: Exception) -> Rejection:
    """Return the reason for which a readable event becomes a dead letter."""
    event = item_of(read).event
    detail = f"Postgres refuses it: {cause_of(error)}"
    return Rejection("unindexable", detail, event.model_id, event.inference_id)
