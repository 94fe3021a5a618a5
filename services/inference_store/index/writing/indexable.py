"""An event with all that was read for it: what the index needs, and nothing of Kafka."""

from dataclasses import dataclass
from functools import cached_property
from uuid import UUID

from inference_store.index.registrations import Registration
from inference_store.index.sidecars import Sidecar
from inference_store.inference.events import InferenceEvent, StorageKey
from inference_store.inference.layout import belongs_to
from inference_store.inference.metadata import Metadata
from inference_store.inference.task_types import Predictions


@dataclass(frozen=True)
class Indexable:
    """One inference, read and ready to be turned into rows."""

    event: InferenceEvent
    registration: Registration
    metadata: Metadata
    predictions: Predictions
    flags: tuple[str, ...] = ()
    sidecar: Sidecar | None = None

    @property
    def identity(self) -> tuple[int, UUID]:
        """The inference's primary key: (model, uid)."""
        return self.registration.model, self.event.uid

    @property
    def all_flags(self) -> tuple[str, ...]:
        """The problems that its readers noted: of the event, blobs, metadata and predictions."""
        event, metadata, predictions = self.event, self.metadata, self.predictions
        return (*event.flags, *self.flags, *metadata.flags, *predictions.flags)

    @cached_property
    def storage_keys(self) -> tuple[str | None, str | None, str | None, str | None]:
        """Where data, response, metadata and sidecar are, as the index keeps it."""
        event = self.event
        sidecar = None if self.sidecar is None else self.sidecar.place
        return _text(event.data), _text(event.response), _text(event.metadata), _text(sidecar)

    @cached_property
    def shared_keys(self) -> tuple[str, ...]:
        """The storage keys that other inferences may point to as well."""
        event = self.event
        places: tuple[StorageKey | None, ...] = (event.data, event.response, event.metadata)
        if self.sidecar is not None:  # ours, but a stranger's event may name it
            places = (*places, self.sidecar.place)
        own = (event.model_id, event.extras.capture_id, event.received_at)
        foreign = (p for p in places if p and not belongs_to(p.key, *own))
        return tuple(dict.fromkeys(str(place) for place in foreign))


def _text(place: StorageKey | None) -> str | None:
    return None if place is None else str(place)
