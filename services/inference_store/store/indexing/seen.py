"""What a batch adds to the key registry: one delta a (model, key, type, flag)."""

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any

import orjson

from inference_store.store.dictionary import Dictionary
from inference_store.store.metadata import Leaf, Presence

from .indexable import Indexable

MOST_EXAMPLES = 3
_LONGEST_EXAMPLE = 120
_Seen = dict[tuple[int, int, str, str], tuple[int, datetime, datetime, list[str]]]


def deltas(items: Iterable[Indexable], dictionary: Dictionary) -> list[tuple[Any, ...]]:
    """Rows of metadata_key_delta for inferences that are new."""
    seen: _Seen = {}
    for item in items:
        model, at = item.registration.model, item.event.received_at
        for name, kind, flag, example in _values(item):
            key = dictionary.keys.number(model, name)
            if key is not None:
                _count(seen, (model, key, kind, flag), at, example)
    return [(*place, *_row(found)) for place, found in seen.items()]


def _values(item: Indexable) -> Iterator[tuple[str, str, str, str | None]]:
    for leaf in item.metadata.leaves:
        yield leaf.name, leaf.type.value, _flag(leaf), str(leaf.value)
    for presence in item.metadata.presences:
        yield presence.name, presence.type, _flag(presence), None


def _flag(value: Leaf | Presence) -> str:
    if value.flags:
        return value.flags[0]
    if isinstance(value, Leaf):
        return ""
    return "null" if value.is_null else "present"


def _count(
    seen: _Seen, place: tuple[int, int, str, str], at: datetime, example: str | None
) -> None:
    count, first, last, examples = seen.get(place, (0, at, at, []))
    if example is not None and len(examples) < MOST_EXAMPLES:
        shown = example[:_LONGEST_EXAMPLE]
        examples = examples if shown in examples else [*examples, shown]
    seen[place] = (count + 1, min(first, at), max(last, at), examples)


def _row(found: tuple[int, datetime, datetime, list[str]]) -> tuple[Any, ...]:
    count, first, last, examples = found
    return count, first, last, orjson.dumps(examples).decode()
