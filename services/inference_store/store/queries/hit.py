"""What a search finds: an inference, and the value that it stands in its order by."""

from dataclasses import dataclass
from typing import Any
from uuid import UUID


@dataclass(frozen=True, slots=True)
class Hit:
    """One inference. `value`: None in order of time, and where it has no value to be sorted by."""

    model: int
    uid: UUID
    value: Any = None
