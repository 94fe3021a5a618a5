"""What became of each record of a batch, and why."""

from collections.abc import Sequence

from inference_store.index.accounting import Outcome
from inference_store.index.database import cause_of
from inference_store.index.records import Trouble
from inference_store.index.sidecars import Sidecar
from inference_store.index.writing import Indexable
from inference_store.ingester.arrivals import Arrivals
from inference_store.ingester.batch import MissingBlob, ReadRecord


def sidecars_of(stored: Sequence[tuple[ReadRecord, Outcome]]) -> list[Sidecar]:
    """Those of the inferences that are new: what was there already has its own."""
    items = [item_of(read) for read, outcome in stored if outcome is Outcome.STORED]
    return [item.sidecar for item in items if item.sidecar is not None]


def settled_of(arrivals: Arrivals) -> list[tuple[ReadRecord, Outcome]]:
    """Those that are not stored by this batch."""
    return [
        *arrivals.settled,
        *((read, Outcome.DEAD) for read, _ in arrivals.dead),
        *((read, Outcome.PARKED) for read, _ in arrivals.missing),
    ]


def item_of(read: ReadRecord) -> Indexable:
    """What was read, of a record that can be stored."""
    if not isinstance(read.result, Indexable):
        raise AssertionError("only what can be indexed is stored")
    return read.result


def labels_of(item: Indexable) -> set[str]:
    """The labels of its predictions."""
    found = (prediction.label for prediction in item.predictions.items or ())
    return {label for label in found if label is not None}


def waits(missing: MissingBlob) -> Trouble:
    """Why an event is parked."""
    detail = missing.detail or f"{missing.storage_key} is not there yet"
    return Trouble(missing.reason, detail, missing.model_id, missing.inference_id)


def unindexable(read: ReadRecord, error: Exception) -> Trouble:
    """Why an event is a dead letter after all."""
    event = item_of(read).event
    detail = f"Postgres refuses it: {cause_of(error)}"
    return Trouble("unindexable", detail, event.model_id, event.inference_id)
