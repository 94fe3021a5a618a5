"""An event loop whose long timers follow a clock that the test moves."""

import asyncio
from collections.abc import Callable
from contextvars import Context
from functools import partial
from typing import Final, NamedTuple, TypeVarTuple, Unpack, cast

import uvloop

Arguments = TypeVarTuple("Arguments")
HELD_SECONDS: Final = 100.0
"""From this delay on, a timer waits for the test: no test takes so long."""


class _Held(NamedTuple):
    delay: float
    due: float
    handle: asyncio.TimerHandle
    call: Callable[[], object]


class SteppedLoop(uvloop.Loop):
    """The loop that the services run on. However slow the machine, a timer of at least HELD_SECONDS
    ends by `advance` alone."""

    def __init__(self) -> None:
        super().__init__()
        self._advanced = 0.0
        self._held: list[_Held] = []

    def time(self) -> float:
        return super().time() + self._advanced

    def call_later(
        self,
        delay: float,
        callback: Callable[[Unpack[Arguments]], object],
        *args: *Arguments,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        handle = super().call_later(delay, callback, *args, context=context)
        if delay >= HELD_SECONDS:
            call = partial(self.call_soon, callback, *args, context=context)
            self._held.append(_Held(delay, self.time() + delay, handle, call))
        return handle

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[Arguments]], object],
        *args: *Arguments,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_later(max(0.0, when - self.time()), callback, *args, context=context)

    def is_held(self, least: float, most: float) -> bool:
        """Return True if a timer with a delay between these waits for the test."""
        return any(
            least <= timer.delay <= most and not timer.handle.cancelled() for timer in self._held
        )

    def advance(self, seconds: float) -> None:
        """Let time pass at once: run what is due then."""
        self._advanced += seconds
        for timer in [timer for timer in self._held if timer.due <= self.time()]:
            self._held.remove(timer)
            if not timer.handle.cancelled():
                timer.handle.cancel()
                timer.call()


def stepped() -> SteppedLoop:
    """Return the loop of the running test."""
    return cast(SteppedLoop, asyncio.get_running_loop())
