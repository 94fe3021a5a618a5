"""An event with its metadata and predictions, ready for the index, without Kafka's data."""

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
        """The keys of data, response, metadata and sidecar, as the index keeps them."""
        event = self.event
        sidecar = None if self.sidecar is None else self.sidecar.place
        return _text(event.data), _text(event.response), _text(event.metadata), _text(sidecar)

    @cached_property
    def shared_keys(self) -> tuple[str, ...]:
        """The storage keys that other inferences may point to as well."""
        event = self.event
        keys: tuple[StorageKey | None, ...] = (event.data, event.response, event.metadata)
        if self.sidecar is not None:  # ours, but a stranger's event may name it
            keys = (*keys, self.sidecar.place)
        own = (event.model_id, event.extras.capture_id, event.received_at)
        foreign = (p for p in keys if p and not belongs_to(p.key, *own))
        return tuple(dict.fromkeys(str(key) for key in foreign))


def _text(key: StorageKey | None) -> str | None:
    return None if key is None else str(key)
