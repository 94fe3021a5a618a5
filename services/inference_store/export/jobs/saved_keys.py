"""The metadata keys of an export when it began: they give all its parts the same columns."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from inference_store.index.key_registry import KeySeen, TypeSeen

SavedKey = tuple[str, list[list[str]]]
"""A key's name, and the type and flag of each way its values came."""
_NEVER: Final = datetime(1970, 1, 1, tzinfo=UTC)  # no column depends on when a key was seen


def save_keys(keys: Sequence[KeySeen]) -> list[SavedKey]:
    """Return the keys as a job's document has them."""
    return [(key.name, [[seen.type, seen.flag] for seen in key.types]) for key in keys]


def load_keys(saved_keys: Sequence[SavedKey]) -> list[KeySeen]:
    """Return the keys of a job's document."""
    return [
        KeySeen(0, name, tuple(TypeSeen(type, flag, 0, _NEVER, _NEVER, ()) for type, flag in types))
        for name, types in saved_keys
    ]
