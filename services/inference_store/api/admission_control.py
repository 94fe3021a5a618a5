"""Admission control: how many queries and streams run at once, in all and for one caller.

A query that has to wait begins as soon as another one ends: first that of the caller with the
fewest running, then the one that came first. One that has waited for long enough is refused, and
told when to come back. So the heavy queries of one caller hold up neither those of others, nor
what needs a connection for something else.
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

# A caller who sends more than this before the first answer is not waiting for answers.
_MOST_WAITING_OF_ONE = 32
_MOST_WAITING = 512


# The settings of the limits: of one caller, and of all.
_SETTINGS: Final = {
    "query": ("QUERIES_AT_ONCE", "QUERIES_AT_ONCE"),
    "stream": ("STREAMS_AT_ONCE", "STREAMS_AT_ONCE"),
    "follow": ("STREAMS_AT_ONCE", "STREAMS_AT_ONCE"),
    "thumbnail": ("THUMBNAIL_PROCESSES", "THUMBNAIL_PROCESSES"),
}
Kind = Literal["query", "stream", "follow", "thumbnail"]


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    caller: str
    admitted: asyncio.Future[None]


class AdmissionControl:
    """Admits up to `most` at once, of which up to `most_of_one` belong to one caller."""

    def __init__(self, kind: Kind, most: int, most_of_one: int, *, wait_seconds: float) -> None:
        self._kind: Final = kind
        self._most = most
        self._most_of_one = most_of_one
        self._wait_seconds = wait_seconds
        self._running: Counter[str] = Counter()
        self._waiting: list[_Waiting] = []

    @asynccontextmanager
    async def admit(self, caller: str, *, wait_seconds: float | None = None) -> AsyncIterator[None]:
        """Run for a caller, after a wait of at most so long. Raises TooManyQueries."""
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

    def require_free(self, caller: str) -> None:
        """Raise TooManyQueries if the caller would have to wait; nothing is admitted."""
        if not self._is_free(caller):
            raise self._make_refusal(caller, 0)

    def _is_free(self, caller: str) -> bool:
        free = self._running.total() < self._most
        return free and self._running[caller] < self._most_of_one

    async def _wait(self, caller: str, seconds: float) -> None:
        waiting = _Waiting(caller, asyncio.get_running_loop().create_future())
        self._refuse_if_crowded(caller, seconds)
        self._waiting.append(waiting)
        TURNS_WAITING.labels(self._kind).set(len(self._waiting))
        try:
            async with asyncio.timeout(seconds):
                await waiting.admitted
        except BaseException as exc:
            if waiting.admitted.done() and not waiting.admitted.cancelled():
                self._end(caller)  # it was admitted at the very moment it left
            if isinstance(exc, TimeoutError):
                raise self._make_refusal(caller, seconds) from None
            raise
        finally:
            if waiting in self._waiting:
                self._waiting.remove(waiting)
            TURNS_WAITING.labels(self._kind).set(len(self._waiting))

    def _refuse_if_crowded(self, caller: str, seconds: float) -> None:
        own = sum(waiting.caller == caller for waiting in self._waiting)
        if own >= _MOST_WAITING_OF_ONE or len(self._waiting) >= _MOST_WAITING:
            raise self._make_refusal(caller, seconds)

    def _make_refusal(self, caller: str, seconds: float) -> TooManyQueries:
        is_own = self._running[caller] >= self._most_of_one
        TURNS_REFUSED.labels(self._kind, "caller" if is_own else "all").inc()
        setting = f"INFERENCE_STORE_{_SETTINGS[self._kind][not is_own]}"
        run = f"{self._most_of_one} of yours" if is_own else f"{self._most}"
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
        self._admit_waiting()

    def _admit_waiting(self) -> None:
        """Admit those who wait, as far as there is room."""
        while ready := [waiting for waiting in self._waiting if self._is_free(waiting.caller)]:
            first = min(ready, key=lambda waiting: self._running[waiting.caller])
            self._waiting.remove(first)
            if not first.admitted.done():
                self._begin(first.caller)
                first.admitted.set_result(None)
