"""Captures as the serving process sees them: it hands exchanges to a separate process.

This module holds the reservations, and the counts of exchanges seen and refused;
nothing in it blocks, decodes or waits. The capture process does the rest (`__main__.py`), so that
it never takes the interpreter's lock from the loop that serves.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

import orjson

from inference_store.inference.producer_reports import DROP_REASONS
from inference_store.platform.metrics import (
    CAPTURE_BUDGET,
    CAPTURE_BYTES,
    CAPTURE_QUEUE,
    CAPTURES,
    CAPTURES_DROPPED,
    MultiprocessMetrics,
    from_zero,
)
from inference_store.platform.settings import ProxySettings
from inference_store.proxy.capture.process import Handshake, write_exchange
from inference_store.proxy.capture.segments import uuid7
from inference_store.proxy.configuration import Rules
from inference_store.proxy.exchange import Exchange
from inference_store.proxy.protocols.protocol import Call
from inference_store.proxy.routing import Route

from .counts import Budget, CounterId, Counts, SharedCounters
from .process import CaptureProcess, Start, start_process
from .publisher import SERVERS, Server
from .spool import make_folder

OVERHEAD: Final = 8192
"""Bytes counted for an exchange in addition to its bodies: a queue of empty ones is bounded, and
there is room for its documents. Larger heads are counted in full."""
PART: Final = 64
"""Bytes counted for a part of a body, and for a header, in addition to its content."""
MOST_CHUNKS: Final = 10_000
"""Parts of one exchange's bodies that are kept; further ones are left out."""


def head_size(head: Iterable[tuple[str | bytes, str | bytes]]) -> int:
    """Return how many bytes headers or metadata are counted with."""
    return sum(len(name) + len(value) + PART for name, value in head)


class Reservation:
    """The memory of one exchange, from its first byte until it is handed over. For the loop's
    thread."""

    __slots__ = ("_captures", "_chunks", "_head", "_reserved", "_room", "refused")

    def __init__(self, captures: "Captures", size: int, head: int, reserved: int) -> None:
        """`reserved` bytes are reserved already."""
        self._captures, self._reserved = captures, reserved
        self._head, self._chunks = head, MOST_CHUNKS
        self.refused = size > captures.body_bytes
        """True if the initial size is over the cap: keep no part of that body
        (Body.whole=False)."""
        self._room = captures.body_bytes - (0 if self.refused else size)

    def reserve_more(self, size: int) -> bool:
        """Reserve more as a body streams through; return False if that exceeds the budget or a
        cap."""
        self._chunks -= 1
        if self._chunks < 0 or size > self._room:
            return False
        if not self._reserved or not self._captures.budget.take(size + PART):
            return False
        self._room -= size
        self._reserved += size + PART
        return True

    def absorb(self, other: "Reservation") -> None:
        """Take over the bytes of another one, whose exchange became part of this one's."""
        self._reserved += other._reserved
        other._reserved = 0

    def finish(self, exchange: Exchange, route: Route) -> None:
        """Hand the exchange over; never blocks, never raises.

        If there is no budget for the answer's head, it is counted as dropped.
        """
        if not self._reserved or route.call is None:
            self.pass_through()
            return
        captures, head = self._captures, self._head + len(exchange.error or "")
        head += head_size(exchange.response_headers) + head_size(exchange.response_trailers)
        more = max(OVERHEAD, head) - max(OVERHEAD, self._head)
        if more and not captures.budget.take(more):
            self.pass_through()
            captures.counts.refuse("no_budget")
            return
        reserved, self._reserved = self._reserved + more, 0
        captures.take_over(exchange, route.call, route, reserved)

    def pass_through(self) -> None:
        """Release the memory: there is nothing to capture."""
        reserved, self._reserved = self._reserved, 0
        self._captures.budget.give_back(reserved)

    def __del__(self) -> None:
        # A forgotten reservation must not keep its bytes forever.
        if getattr(self, "_reserved", 0):
            self.pass_through()


# Calls wait if exchanges that were handed over hold more than this share of the memory: the rest is
# for calls in progress.
_CROWDED: Final = 3 / 4
_LOOK_SECONDS: Final = 0.002
# If nothing becomes free for so long, no call waits.
_STUCK_SECONDS: Final = 1.0


class Queue:
    """Calls that wait a moment while captures are behind. So a busy processor is shared between
    serving and capturing, instead of serving all calls and capturing few.

    None waits longer than `seconds`, and none at all while a server is unavailable or nothing
    becomes free: what is missing then is not a processor's time.
    """

    def __init__(self, budget: Budget, seconds: float) -> None:
        self._budget, self._seconds = budget, seconds
        self._turn = asyncio.Lock()
        self._freed, self._moved = -1, 0.0
        self._let = 0
        """Bytes of calls that have just gone on, and are not handed over yet."""

    @property
    def is_needed(self) -> bool:
        """True if a call that is to be captured should call `wait`."""
        return self._budget.behind > self._budget.limit * _CROWDED

    async def wait(self, size: int) -> None:
        """Wait in turn until captures have made room; not long. `size`: of the request's body. A
        large one needs no more room than some."""
        if not self._seconds or not self._helps():
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(self._seconds), self._turn:
                while self._budget.behind + self._let > self._budget.limit * _CROWDED:
                    await asyncio.sleep(_LOOK_SECONDS)
                    self._let = 0
                    if not self._helps():
                        return
                self._let += OVERHEAD + size

    def _helps(self) -> bool:
        now = asyncio.get_running_loop().time()
        if self._budget.freed != self._freed:
            self._freed, self._moved = self._budget.freed, now
        return not self._budget.is_away and now <= self._moved + _STUCK_SECONDS


# A capture process writes its status as soon as it has begun.
_SILENT_SECONDS: Final = 10.0
# Longest wait for Kafka to take a report in the place of the capture process.
_REPORT_SECONDS: Final = 5.0


class Captures:
    """The captures of one proxy: a producer with an id of its own, new at every start.

    `begin` and the reservations are for the event loop's thread and never block.
    """

    def __init__(
        self,
        settings: ProxySettings,
        models: Sequence[Rules] = (),
        *,
        start: Start | None = None,
    ) -> None:
        """`models`: the rules of the configuration. `start`: starts the capture process; by default
        a separate process."""
        self._settings, self._models = settings, tuple(models)
        self._start = start or start_process
        self.producer = str(uuid7())
        self._counters = SharedCounters.new()
        self._counters.values[CounterId.BOOTED] = time.time_ns() // 1000
        self.counts = Counts(self.producer, self._counters.values)
        self.budget = Budget(self._counters.values, settings.proxy_capture_bytes)
        self.body_bytes = settings.proxy_body_bytes
        self.queue = Queue(self.budget, settings.proxy_capture_wait_seconds)
        """Calls that wait for room."""
        self._process = CaptureProcess(
            lambda connection: self._start(connection, self._counters.file, self.counts.file),
            self._write_handshake,
            self._has_ended,
        )
        self._stopping = self._has_begun = False
        self._unpublished: int | None = None
        self._last_status: Mapping[str, Any] = {}
        self.metrics = MultiprocessMetrics("proxy", lambda: self._read_status().get("metrics", ()))
        """The metrics of both processes, for `/metrics`."""
        from_zero(CAPTURES, ("seen", "dropped"))
        from_zero(CAPTURES_DROPPED, DROP_REASONS)
        CAPTURE_BUDGET.set(self.budget.limit)
        CAPTURE_BYTES.set_function(lambda: self.budget.held)
        CAPTURE_QUEUE.set_function(lambda: self.counts.queued)

    @property
    def waits(self) -> Mapping[str, Callable[[], Awaitable[str | None]]]:
        """The details that the admin port shows beside its checks: why captures wait."""

        async def find_error(server: Server) -> str | None:
            return self._find_away().get(server)

        waits: dict[str, Callable[[], Awaitable[str | None]]]
        waits = {server: partial(find_error, server) for server in SERVERS}
        return waits | {"capture": self._find_capture_error}

    def begin(self, size: int, head: int = 0) -> Reservation | None:
        """Count an exchange as seen, and reserve `size` bytes (0: not known yet) and room for a
        request head of `head` bytes (`head_size`).

        Returns None if the budget is used up; the exchange is counted as dropped and passes through
        uncaptured.
        """
        if self._stopping:
            self.counts.refuse("stopping")
            return None
        reserved = max(OVERHEAD, head) + (size if size <= self.body_bytes else 0)
        if not self.budget.take(reserved):
            self.counts.refuse("no_budget")
            return None
        return Reservation(self, size, head, reserved)

    def expect(self, count: int) -> None:
        """Count exchanges that wait to be handed over as seen: if this process is killed, the
        capture process reports them as lost. A negative `count` takes them back."""
        self.counts.values[CounterId.SEEN] += count

    async def start(self) -> None:
        """Begin to capture. Raises OSError if the spool's folder cannot be used."""
        root = self._settings.proxy_spool_directory
        if self._settings.proxy_spool != "off" and root is not None:
            # This process holds the lock, too: nobody may adopt the folder while a new process
            # begins.
            self.counts.file = await asyncio.to_thread(make_folder, root, self.producer)
            await asyncio.to_thread(self.counts.store)
        self._process.begin()

    async def stop(self, grace_seconds: float) -> int:
        """Refuse new exchanges, and publish the others for `grace_seconds`. Return how many
        exchanges are unpublished then, in the spool or lost (the accounting and the log say
        which)."""
        if self._unpublished is None:
            self._stopping = True
            self._counters.values[CounterId.DEADLINE] = time.monotonic_ns() + int(
                grace_seconds * 1e9
            )
            end = asyncio.get_running_loop().time() + grace_seconds
            if not await self._process.end(end):
                await self._report_in_its_place()
            self._unpublished = self.counts.queued + self.counts.dropped.get("left", 0)
            self.counts.close()
            self._counters.close()
        return self._unpublished

    def speed_up(self) -> None:
        """Capture at the priority of this process from now on: no calls come any more."""
        self._process.speed_up()

    async def find_start_error(self) -> str | None:
        """Return why nothing is captured yet; None once a capture process has begun."""
        self._has_begun = self._has_begun or bool(self._counters.values[CounterId.WRITING_STATUS])
        if self._has_begun:
            return None
        return self._process.find_failure or "the capture process is starting"

    async def _report_in_its_place(self) -> None:
        """Count what a capture process held that was killed or never began, and send the final
        report: what is in the spool waits for the next proxy, the rest is lost."""
        # Imported here, because a capture process nearly always ends by itself.
        from .publisher import Publisher, Reporting  # noqa: PLC0415
        from .spool import Spools  # noqa: PLC0415

        topic = Publisher(self._settings)
        spools = Spools(self._settings, self.counts)
        await asyncio.to_thread(spools.open)
        self.counts.give_up()
        reporting = Reporting(topic, self.counts, spools)
        await reporting.report_all(final=True, seconds=_REPORT_SECONDS)
        reporting.cancel()
        await topic.close()

    def take_over(self, exchange: Exchange, call: Call, route: Route, reserved: int) -> None:
        """Take over an exchange, and the bytes reserved for it; never blocks, never raises."""
        if self._stopping:
            self.counts.refuse("stopping")
            self.budget.give_back(reserved)
            return
        self.counts.see()
        self.budget.hand(reserved)
        self._process.hand(write_exchange(exchange, call, route, reserved), reserved)

    def _write_handshake(self, handed: int) -> bytes:
        handshake = Handshake(
            settings=self._settings,
            models=self._models,
            producer=self.producer,
            handed=handed,
        )
        return handshake.frame()

    def _has_ended(self, handed_bytes: int) -> None:
        self._counters.values[CounterId.FREED] = handed_bytes
        self.metrics.add_former()
        self._counters.values[CounterId.WRITING_STATUS] = 0
        self._counters.values[CounterId.IS_AWAY] = 0
        self._last_status = {}

    def _read_status(self) -> Mapping[str, Any]:
        text = self._counters.read_status()
        if text is not None:
            self._last_status = orjson.loads(text)
        return self._last_status

    async def _find_capture_error(self) -> str | None:
        process = self._process
        if process.age > _SILENT_SECONDS and not self._counters.values[CounterId.WRITING_STATUS]:
            return "the capture process was started and does not begin: it hangs, or finds no CPU"
        return process.find_failure

    def _find_away(self) -> Mapping[Server, str]:
        away: Mapping[Server, str] = self._read_status().get("unavailable", {})
        return away
