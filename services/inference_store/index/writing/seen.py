"""What a batch adds to the key registry: one delta a (model, key, type, flag)."""

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
_Place = tuple[int, str, str, str]


@dataclass(slots=True)
class _Seen:
    """What was seen of one place within the batch."""

    first: datetime
    last: datetime
    count: int = 0
    # in the order they were met
    examples: dict[str, None] = field(default_factory=dict)

    def add(self, at: datetime) -> None:
        self.count += 1
        self.first, self.last = min(self.first, at), max(self.last, at)

    @property
    def shown(self) -> str:
        return orjson.dumps(list(self.examples)).decode()


def deltas(items: Iterable[Indexable], dictionary: Dictionary) -> list[tuple[Any, ...]]:
    """Rows of metadata_key_delta for inferences that are new."""
    seen: dict[_Place, _Seen] = {}
    for item in items:
        model, at = item.registration.model, item.event.received_at
        for leaf in item.metadata.leaves:
            place = (model, leaf.name, leaf.type.value, leaf.flags[0] if leaf.flags else "")
            found = seen.get(place) or seen.setdefault(place, _Seen(at, at))
            found.add(at)
            if len(found.examples) < MOST_EXAMPLES:
                found.examples[str(leaf.value)[:_LONGEST_EXAMPLE]] = None
        # A value that is none of its type has both a leaf (as text) and a presence.
        flagged = {leaf.name for leaf in item.metadata.leaves if leaf.flags}
        for presence in item.metadata.presences:
            if presence.name in flagged and presence.flags:
                continue
            place = (model, presence.name, presence.type, _flag(presence))
            (seen.get(place) or seen.setdefault(place, _Seen(at, at))).add(at)
    return [
        (place[0], key, *place[2:], found.count, found.first, found.last, found.shown)
        for place, found in seen.items()
        if (key := dictionary.keys.number(place[0], place[1])) is not None
    ]


def _flag(presence: Presence) -> str:
    if presence.flags:
        return presence.flags[0]
    return "null" if presence.is_null else "present"
