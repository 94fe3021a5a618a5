"""The additions of a batch to the key registry: one delta for each (model, key, type, flag)."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import orjson

from inference_store.index.dictionary import Dictionary
from inference_store.inference.metadata import Presence

from .indexable import Indexable

MOST_EXAMPLES = 3
_LONGEST_EXAMPLE = 120
# model, name, type, flag
_Group = tuple[int, str, str, str]


@dataclass(slots=True)
class _KeyDelta:
    """The values of one (model, key, type, flag) in the batch."""

    first: datetime
    last: datetime
    count: int = 0
    # in the order they were met
    examples: dict[str, None] = field(default_factory=dict)

    def add(self, at: datetime) -> None:
        self.count += 1
        self.first, self.last = min(self.first, at), max(self.last, at)

    @property
    def examples_json(self) -> str:
        return orjson.dumps(list(self.examples)).decode()


def build_deltas(items: Iterable[Indexable], dictionary: Dictionary) -> list[tuple[Any, ...]]:
    """Return the rows of metadata_key_delta for new inferences."""
    deltas: dict[_Group, _KeyDelta] = {}
    for item in items:
        model, at = item.registration.model, item.event.received_at
        for leaf in item.metadata.leaves:
            group = (model, leaf.name, leaf.type.value, leaf.flags[0] if leaf.flags else "")
            delta = deltas.get(group) or deltas.setdefault(group, _KeyDelta(at, at))
            delta.add(at)
            if len(delta.examples) < MOST_EXAMPLES:
                delta.examples[str(leaf.value)[:_LONGEST_EXAMPLE]] = None
        # A value that is invalid for its type has both a leaf (as text) and a presence.
        flagged = {leaf.name for leaf in item.metadata.leaves if leaf.flags}
        for presence in item.metadata.presences:
            if presence.name in flagged and presence.flags:
                continue
            group = (model, presence.name, presence.type, _flag(presence))
            (deltas.get(group) or deltas.setdefault(group, _KeyDelta(at, at))).add(at)
    return [
        (group[0], key, *group[2:], delta.count, delta.first, delta.last, delta.examples_json)
        for group, delta in deltas.items()
        if (key := dictionary.keys.number(group[0], group[1])) is not None
    ]


def _flag(presence: Presence) -> str:
    if presence.flags:
        return presence.flags[0]
    return "null" if presence.is_null else "present"
