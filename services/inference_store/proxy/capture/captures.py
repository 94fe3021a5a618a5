"""Captures as the serving process sees them: it hands exchanges to a separate process.

This module holds the budget, the reservations, and the counts of exchanges seen and refused;
nothing in it blocks, decodes or waits. The capture process does the rest (`recorder.py`), so that
it never takes the interpreter's lock from the loop that serves.
"""

import asyncio
import os
import socket
import time
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
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

from .backoff import SERVERS, Server
from .budget import Budget
from .counts import Counts
from .folder_locks import make_folder
from .frames import Buffers, Writer
from .handshake import Handshake
from .process import CaptureProcess, Start, StartedProcess, start_process
from .reservation import Reservation, reservation_size
from .shared_counters import CounterId, SharedCounters
from .uuid7 import uuid7
from .work import Work

# A capture process writes its status as soon as it has begun.
_SILENT_SECONDS: Final = 10.0
# Longest wait for Kafka to take a report in the place of the capture process.
_REPORT_SECONDS: Final = 5.0
MOST_CHUNKS: Final = 10_000
"""Parts of one exchange's bodies that are kept; further ones are left out."""


class Captures:
    """The captures of one proxy: a producer with an id of its own, new at every start.

    `begin` and the reservations are for the event loop's thread and never block.
    """

    def __init__(self, settings: ProxySettings, *, start: Start | None = None) -> None:
        """`start`: starts the capture process; by default a separate process."""
        self._settings = settings
        self._start = start or start_process
        self.producer = str(uuid7())
        self._counters = SharedCounters.new()
        now = datetime.now(UTC)
        self._counts = Counts(self.producer, self.producer, now, self._counters.values)
        self._budget = Budget(self._counters.values, settings.proxy_capture_bytes)
        self._body_bytes = settings.proxy_body_bytes
        self._chunks = MOST_CHUNKS
        self._refuse = partial(self._counts.refuse, "no_budget")
        self._writer = Writer()
        self._lock = -1
        self._process = CaptureProcess(self._start_process, self._first_frames, self._has_ended)
        self._stopping = self._has_begun = False
        self._unpublished: int | None = None
        self._last_status: Mapping[str, Any] = {}
        self.metrics = MultiprocessMetrics("proxy", lambda: self._read_status().get("metrics", ()))
        """The metrics of both processes, for `/metrics`."""
        self._begin_metrics()

    @property
    def waits(self) -> Mapping[str, Callable[[], Awaitable[str | None]]]:
        """The details that the admin port shows beside its checks: why captures wait."""
        return {
            "capture": self._find_capture_error,
            **{server: partial(self._find_server_error, server) for server in SERVERS},
        }

    @property
    def queued(self) -> int:
        """Exchanges not published yet."""
        return self._counts.queued

    @property
    def published(self) -> int:
        """Exchanges that Kafka has acknowledged."""
        return self._counts.published

    def begin(self, size: int, head: int = 0) -> Reservation | None:
        """Count an exchange as seen, and reserve `size` bytes (0: not known yet) and room for a
        request head of `head` bytes (`head_size`).

        Returns None if the budget is used up; the exchange is counted as dropped and passes through
        uncaptured.
        """
        if self._stopping:
            self._counts.refuse("stopping")
            return None
        if not self._budget.take(reservation_size(head, size, self._body_bytes)):
            self._counts.refuse("no_budget")
            return None
        return Reservation(
            self._budget,
            self._take_over,
            self._refuse,
            head=head,
            size=size,
            body_bytes=self._body_bytes,
            chunks=self._chunks,
        )

    async def start(self) -> None:
        """Begin to capture. Raises OSError if the spool's folder cannot be used."""
        root = self._settings.proxy_spool_directory
        if self._settings.proxy_spool != "off" and root is not None:
            # This process holds the lock, too: nobody may adopt the folder while a new process
            # begins.
            self._lock = await asyncio.to_thread(make_folder, root, self.producer)
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
            self._unpublished = self._counts.queued + self._counts.dropped.get("left", 0)
            if self._lock >= 0:
                os.close(self._lock)
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
        from .publisher import Publisher  # noqa: PLC0415
        from .reporting import Reporting  # noqa: PLC0415
        from .spools import Spools  # noqa: PLC0415

        topic = Publisher(self._settings)
        spools = Spools(self._settings, self._counts, self._lock if self._lock >= 0 else None)
        await asyncio.to_thread(spools.open)
        self._counts.give_up(spools.own_waiting)
        reporting = Reporting(topic, self._counts, spools)
        await reporting.send_final_reports(_REPORT_SECONDS)
        reporting.cancel()
        await topic.close()

    def _take_over(self, work: Work, reserved: int) -> None:
        if self._stopping:
            self._counts.refuse("stopping")
            self._budget.give_back(reserved)
            return
        self._counts.see()
        self._process.hand(self._writer.exchange(work, reserved), reserved)

    def _start_process(self, connection: socket.socket) -> StartedProcess:
        return self._start(connection, self._counters.file, self._lock)

    def _first_frames(self, handed: int) -> Buffers:
        handshake = Handshake(
            settings=self._settings,
            producer=self.producer,
            booted_at=self._counts.booted_at,
            handed=handed,
        )
        return [handshake.frame(), *self._writer.rules]

    def _has_ended(self, handed_bytes: int) -> None:
        """Free the bytes and clear the status of a capture process that has ended."""
        self._counters.values[CounterId.FREED] = handed_bytes
        self.metrics.add_former()
        self._counters.values[CounterId.WRITING_STATUS] = 0
        self._last_status = {}

    def _read_status(self) -> Mapping[str, Any]:
        """Return the status of the capture process; empty if it has not written one yet."""
        text = self._counters.read_status()
        if text is not None:
            self._last_status = orjson.loads(text)
        return self._last_status

    async def _find_capture_error(self) -> str | None:
        process = self._process
        if process.age > _SILENT_SECONDS and not self._counters.values[CounterId.WRITING_STATUS]:
            return "the capture process was started and does not begin: it hangs, or finds no CPU"
        return process.find_failure

    async def _find_server_error(self, server: Server) -> str | None:
        why: str | None = self._read_status().get("unavailable", {}).get(server)
        return why

    def _begin_metrics(self) -> None:
        from_zero(CAPTURES, ("seen", "dropped"))
        from_zero(CAPTURES_DROPPED, DROP_REASONS)
        CAPTURE_BUDGET.set(self._budget.limit)
        CAPTURE_BYTES.set_function(lambda: self._budget.held)
        CAPTURE_QUEUE.set_function(lambda: self._counts.queued)
