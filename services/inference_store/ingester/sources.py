"""The sources whose events cannot be stored: the recent outcomes by producer and model.

They are in memory, for this process's own partitions, and empty after a start.
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
"""A producer and a model's id; empty if an event names none."""
FAILS_AFTER: Final = 10
"""A source fails if this many of its events in a row were quarantined."""
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
    """The latest sources, with their stored events in this window and the one before."""

    def __init__(self, window_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._window = window_seconds
        self._clock = clock
        self._began = clock()
        self._histories: OrderedDict[Source, _History] = OrderedDict()

    def copied(self) -> "Sources":
        """Return a copy, in which outcomes can be noted on trial."""
        twin = copy(self)
        twin._histories = OrderedDict(
            (name, copy(history)) for name, history in self._histories.items()
        )
        return twin

    def note(self, outcomes: Iterable[tuple[ReadRecord, Outcome]]) -> None:
        """Note the outcomes of events, in their order."""
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
        """The share of failing sources, weighted by their stored events; 1 if there are none."""
        everything = sum(history.weight for history in self._histories.values())
        failing = sum(
            history.weight
            for history in self._histories.values()
            if history.aside_in_a_row >= FAILS_AFTER
        )
        return failing / everything if everything else 1.0

    @property
    def worst(self) -> Source:
        """The source with the most quarantined events in a row."""
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
    """Return the source, as far as the event names it."""
    result = read.result
    model_id = result.event.model_id if isinstance(result, Indexable) else result.model_id
    return dict(read.record.headers).get("producer", ""), model_id or ""
