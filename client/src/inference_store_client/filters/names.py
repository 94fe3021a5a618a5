"""Names in filters: metadata keys, properties of the inference, columns of a prediction."""

from dataclasses import dataclass
from typing import Final

from .expression import Value


@dataclass(frozen=True, slots=True)
class Names:
    """Names of one kind, as attributes or as items: `meta.frame_number`, `meta["camera-id"]`.

    `_prefix` says which kind, so that a metadata key is never taken for a property.
    """

    _prefix: str

    def __getattr__(self, name: str) -> Value:
        if name.startswith("__"):
            raise AttributeError(name)
        return self[name]

    def __getitem__(self, name: str) -> Value:
        return Value({"property": self._prefix + name})


meta: Final = Names("metadata.")
"""Metadata keys. A path reaches into a JSON value: `meta["camera_position.angle"]`; the elements of
an array are `meta["tags[]"]`."""
field: Final = Names("inference.")
"""Properties of the inference: `field.ok`, `field.received_at`, `field.top_label`."""
predicted: Final = Names("")
"""Columns of a prediction, inside `prediction(…)`: `predicted.label`, `predicted.score`."""
