"""Questions about another model while an erasure runs, beside the same questions without."""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count as numbers
from random import Random
from typing import Final, TypeVar

from benchmarks.query.asker import Answer, Asker
from benchmarks.query.bodies import CASES
from benchmarks.query.measure import percentile

T = TypeVar("T")
# Of the matrix: what a reader asks every day.
_NAMES: Final = ("everything", "equality, 2 %", "label and score")
_CASES: Final = [case for case in CASES if case.name in _NAMES]
Times = Mapping[str, list[float]]


@dataclass(slots=True)
class Questions:
    """One reader, who asks for a page, a count and one by its id, over and over."""

    asker: Asker
    _some: list[tuple[object, str]] = field(default_factory=list)
    _number: Iterator[int] = field(default_factory=numbers)

    async def draw(self) -> None:
        """Draw the inferences that are looked up, and warm the caches."""
        self._some = list(await self.asker.some(500, Random(1)))
        await self.during(asyncio.sleep(2))

    async def during(self, what: Awaitable[T]) -> tuple[T, Times]:
        """Ask until it is done; milliseconds of each answer, by what was asked."""
        times: dict[str, list[float]] = defaultdict(list)
        running = asyncio.ensure_future(what)
        while not running.done():
            for kind, ask in self._asks().items():
                times[kind].append(1000 * (await ask()).seconds)
        return await running, times

    def _asks(self) -> Mapping[str, Callable[[], Awaitable[Answer]]]:
        number = next(self._number)
        case = _CASES[number % len(_CASES)]
        body = case.make(Random(f"{case.name} {number}"))
        _, inference_id = self._some[number % len(self._some)]
        return {
            "page": lambda: self.asker.page(body),
            "count": lambda: self.asker.count(body),
            "look-up": lambda: self.asker.look_up(inference_id),
        }


def find_p99(times: Times) -> dict[str, float]:
    """Return the 99th percentile of each kind, and of all, in milliseconds."""
    figures = {kind: percentile(sorted(answers), 0.99) for kind, answers in times.items()}
    everything = sorted(milliseconds for answers in times.values() for milliseconds in answers)
    return figures | {"all": percentile(everything, 0.99), "asked": len(everything)}
