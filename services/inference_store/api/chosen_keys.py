"""Chosen metadata keys that no inference has: an error, or a warning if they count as empty."""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index import key_registry
from inference_store.index.key_registry import Models
from inference_store.inference.errors import Fault, UnknownKey
from inference_store.inference.metadata import KEY_ALIASES, MetadataCaps
from inference_store.inference.nearest import MOST_WARNED, list_warnings, nearest, shortened

from .field_selection import FieldSelection, is_within
from .schemas.questions import InferenceQuery

_METADATA: Final = "metadata"
_LONGEST: Final = MetadataCaps().key_characters


async def check_chosen_keys(
    connection: AsyncConnection, models: Models, body: InferenceQuery, selection: FieldSelection
) -> list[str]:
    """Return warnings about the keys in `fields` that no inference of the models has.

    Raises UnknownKey instead, unless such keys count as empty.
    """
    if not selection.find_parts(_METADATA):  # none is chosen, or all are
        return []
    names = await key_registry.all_names(connection, models)
    paths = {
        key: f"fields[{number}]"
        for number, (field, _, key) in enumerate(name.partition(".") for name in body.fields or ())
        if field == _METADATA and not _is_known(key, names)
    }
    if paths and body.unknown_keys == "refuse":
        raise _refuse(paths, names)
    return list_warnings(list(paths), lambda key: _describe(key, names))


def _is_known(key: str, names: Sequence[str]) -> bool:
    """Return whether one of the names, which are sorted, is the key or within it."""
    key = KEY_ALIASES.get(key, key)
    if len(key) > _LONGEST:  # the names have its beginning
        key = f"{key[: _LONGEST - 1]}…"
    for begin in (key, f"{key}.", f"{key}["):
        position = bisect_left(names, begin)
        if position < len(names) and is_within(names[position], key):
            return True
    return False


def _refuse(paths: dict[str, str], names: Sequence[str]) -> UnknownKey:
    """Return the error for unknown keys; `paths`: where each stands in the body."""
    faults = []
    for key, path in list(paths.items())[:MOST_WARNED]:
        near = nearest(key, names, limit=3)
        hint = f"the nearest are {', '.join(near)}" if near else "none is spelt alike"
        faults.append(Fault(path, f"there is no metadata key {shortened(key)}; {hint}", near))
    more = len(paths) - len(faults)
    others = f" And {more:,} more are not there." if more else ""
    return UnknownKey(f"{faults[0].path}: {faults[0].message}.{others}", faults=faults)


def _describe(key: str, names: Sequence[str]) -> str:
    near = nearest(key, names, limit=3)
    hint = f" The nearest are {', '.join(near)}." if near else ""
    return f"No inference of this model has the metadata key {shortened(key)}.{hint}"
