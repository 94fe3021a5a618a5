"""Who sends what cannot be stored: what became of late of each producer's events of each model.

In memory, of this process's own partitions. After a start nothing is known of anybody.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from copy import copy
from dataclasses import dataclass
from typing import Final, TypeAlias

from inference_store.index.accounting import Outcome
from inference_store.index.writing import Indexable

from .batch import ReadRecord

Source: TypeAlias = tuple[str, str]
"""A producer and a model's id; empty where an event names none."""
FAILS_AFTER: Final = 10
"""A source fails once so many of its events were set aside, one after the other."""
_MOST: Final = 10_000
_SET_ASIDE: Final = frozenset({Outcome.DEAD, Outcome.PARKED})


@dataclass(slots=True)
class _History:
    stored: int = 0
    stored_before: int = 0
    aside_in_a_row: int = 0

    @property
    def weight(self) -> int:
        return self.stored + self.stored_before


class Sources:
    """The sources heard last, with what was stored of each in this window and the one before."""

    def __init__(self, window_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._window = window_seconds
        self._clock = clock
        self._began = clock()
        self._histories: OrderedDict[Source, _History] = OrderedDict()

    def copied(self) -> "Sources":
        """The same, to try something on."""
        twin = copy(self)
        twin._histories = OrderedDict((name, copy(each)) for name, each in self._histories.items())
        return twin

    def note(self, outcomes: Iterable[tuple[ReadRecord, Outcome]]) -> None:
        """What became of events, in their order."""
        self._move_window()
        for read, outcome in outcomes:
            source = source_of(read)
            history = self._histories.setdefault(source, _History())
            self._histories.move_to_end(source)
            if outcome in _SET_ASIDE:
                history.aside_in_a_row += 1
            else:
                history.stored += 1
                history.aside_in_a_row = 0
        while len(self._histories) > _MOST:
            self._histories.popitem(last=False)

    @property
    def failing_share(self) -> float:
        """The share of sources that fail now, by what was stored of each; 1 if nothing was."""
        everything = sum(each.weight for each in self._histories.values())
        failing = sum(
            each.weight for each in self._histories.values() if each.aside_in_a_row >= FAILS_AFTER
        )
        return failing / everything if everything else 1.0

    @property
    def worst(self) -> Source:
        """The source of which most events in a row were set aside."""
        return max(self._histories, key=lambda name: self._histories[name].aside_in_a_row)

    def _move_window(self) -> None:
        passed = int((self._clock() - self._began) // self._window)
        if not passed:
            return
        self._began += passed * self._window
        for history in self._histories.values():
            history.stored_before = history.stored if passed == 1 else 0
            history.stored = 0


def source_of(read: ReadRecord) -> Source:
    """As far as the event names it."""
    result = read.result
    model_id = result.event.model_id if isinstance(result, Indexable) else result.model_id
    return dict(read.record.headers).get("producer", ""), model_id or ""
