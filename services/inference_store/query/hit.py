"""What a search finds: an inference, and the value that it stands in its order by."""

from typing import Any, NamedTuple
from uuid import UUID


class Hit(NamedTuple):
    """One inference. `value`: None in order of time, and where it has no value to be sorted by."""

    model: int
    uid: UUID
    value: Any = None
