"""How many queries, and streams, run at once in this process: of all callers, and of one.

A query that has to wait is let in as soon as one ends: first who has the fewest running, then who
came first. Who has waited long enough is refused and told when to come back: so heavy queries of
one caller hold up neither those of others, nor what needs a connection for something else.
"""

import asyncio
import math
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final, Literal

from inference_store.inference.errors import TooManyQueries
from inference_store.platform.metrics import TURN_SECONDS, TURNS, TURNS_REFUSED, TURNS_WAITING

# Whoever sends more than this before the first is answered does not wait for answers at all.
_MOST_WAITING_OF_ONE = 32
_MOST_WAITING = 512


# The settings whose limits they are: of one caller, and of all.
_SETTINGS: Final = {
    "query": ("QUERIES_AT_ONCE_PER_CALLER", "QUERIES_AT_ONCE"),
    "stream": ("STREAMS_AT_ONCE", "STREAMS_AT_ONCE"),
}
Kind = Literal["query", "stream"]


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    caller: str
    turn: asyncio.Future[None]


class Turns:
    """Turns to run; `most` at once, and `most_of_one` of them by one caller."""

    def __init__(self, kind: Kind, most: int, most_of_one: int, *, wait_seconds: float) -> None:
        self._kind: Final = kind
        self._most = most
        self._most_of_one = most_of_one
        self._wait_seconds = wait_seconds
        self._running: Counter[str] = Counter()
        self._waiting: list[_Waiting] = []

    @asynccontextmanager
    async def turn(self, caller: str, *, wait_seconds: float | None = None) -> AsyncIterator[None]:
        """A turn for a caller, waited for up to so long. Raises TooManyQueries."""
        wait = self._wait_seconds if wait_seconds is None else wait_seconds
        began = time.monotonic()
        if self._is_free(caller):
            self._begin(caller)
        else:
            await self._wait(caller, wait)
        TURN_SECONDS.labels(self._kind).observe(time.monotonic() - began)
        try:
            yield
        finally:
            self._end(caller)

    def refuse_unless_free(self, caller: str) -> None:
        """Raise TooManyQueries where a turn would have to be waited for; none is taken."""
        if not self._is_free(caller):
            raise self._refused(caller, 0)

    def _is_free(self, caller: str) -> bool:
        free = self._running.total() < self._most
        return free and self._running[caller] < self._most_of_one

    async def _wait(self, caller: str, seconds: float) -> None:
        waiting = _Waiting(caller, asyncio.get_running_loop().create_future())
        self._refuse_crowds(caller, seconds)
        self._waiting.append(waiting)
        TURNS_WAITING.labels(self._kind).set(len(self._waiting))
        try:
            async with asyncio.timeout(seconds):
                await waiting.turn
        except BaseException as exc:
            if waiting.turn.done() and not waiting.turn.cancelled():
                self._end(caller)  # it was let in at the very moment it left
            if isinstance(exc, TimeoutError):
                raise self._refused(caller, seconds) from None
            raise
        finally:
            if waiting in self._waiting:
                self._waiting.remove(waiting)
            TURNS_WAITING.labels(self._kind).set(len(self._waiting))

    def _refuse_crowds(self, caller: str, seconds: float) -> None:
        mine = sum(each.caller == caller for each in self._waiting)
        if mine >= _MOST_WAITING_OF_ONE or len(self._waiting) >= _MOST_WAITING:
            raise self._refused(caller, seconds)

    def _refused(self, caller: str, seconds: float) -> TooManyQueries:
        mine = self._running[caller] >= self._most_of_one
        TURNS_REFUSED.labels(self._kind, "caller" if mine else "all").inc()
        setting = f"INFERENCE_STORE_{_SETTINGS[self._kind][not mine]}"
        run = f"{self._most_of_one} of yours" if mine else f"{self._most}"
        detail = f"As many run already as may at once: {run} ({setting}). Try again shortly."
        return TooManyQueries(detail, retry_after_seconds=max(1, math.ceil(seconds)))

    def _begin(self, caller: str) -> None:
        self._running[caller] += 1
        TURNS.labels(self._kind).inc()

    def _end(self, caller: str) -> None:
        TURNS.labels(self._kind).dec()
        self._running[caller] -= 1
        if not self._running[caller]:
            del self._running[caller]
        self._let_in()

    def _let_in(self) -> None:
        """Give the turns that are free to those who wait."""
        while ready := [each for each in self._waiting if self._is_free(each.caller)]:
            first = min(ready, key=lambda each: self._running[each.caller])
            self._waiting.remove(first)
            if not first.turn.done():
                self._begin(first.caller)
                first.turn.set_result(None)
