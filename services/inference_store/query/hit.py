"""A hit of a search: an inference, and the value that it is sorted by."""

from typing import Any, NamedTuple
from uuid import UUID


class Hit(NamedTuple):
    """One inference. `value`: None in order of time, and if it has no value to be sorted by."""

    model: int
    uid: UUID
    value: Any = None
