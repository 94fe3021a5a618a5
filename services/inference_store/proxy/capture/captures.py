"""Captures as the serving process sees them: what is kept is handed to a process of its own.

Here are the budget, the tickets, and the counts of what is seen and refused; nothing here blocks,
decodes or waits. All else is done by the capture process (`recorder.py`), so that it never takes
the interpreter's lock from the loop that serves.
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
    from_zero,
)
from inference_store.platform.metrics_of_two import MetricsOfTwo
from inference_store.platform.settings import ProxySettings

from .backoff import SERVERS, Server
from .budget import Budget
from .counts import Counts
from .folder_locks import made_folder
from .frames import Buffers, Writer
from .hello import Hello
from .page import Cell, Page
from .process import CaptureProcess, Start, Started, starting
from .ticket import Ticket, reservation
from .uuid7 import uuid7
from .work import Work

# A capture process that has begun says so at once.
_SILENT_SECONDS: Final = 10.0


class Captures:
    """Captures of one proxy: a producer with an id of its own, new at every start.

    `begin` and the tickets are for the event loop's thread and never block.
    """

    def __init__(self, settings: ProxySettings, *, start: Start | None = None) -> None:
        """`start`: how the capture process is started; by default as a process of its own."""
        self._settings = settings
        self._start = start or starting(settings.proxy_capture_priority)
        self.producer = str(uuid7())
        self._page = Page.new()
        now = datetime.now(UTC)
        self._counts = Counts(self.producer, self.producer, now, self._page.cells)
        self._budget = Budget(self._page.cells, settings.proxy_capture_bytes)
        self._body_bytes = settings.proxy_body_bytes
        self._chunks = settings.proxy_stream_chunks
        self._refuse = partial(self._counts.refuse, "no_budget")
        self._writer = Writer()
        self._lock = -1
        self._process = CaptureProcess(self._start_one, self._first_words, self._has_ended)
        self._stopping = False
        self._left: int | None = None
        self._last_told: Mapping[str, Any] = {}
        self.metrics = MetricsOfTwo("proxy", lambda: self._told().get("metrics", ()))
        """What `/metrics` of the proxy shows: both processes' metrics."""
        self._begin_metrics()

    @property
    def waits(self) -> Mapping[str, Callable[[], Awaitable[str | None]]]:
        """What the admin port may show beside its checks: why captures wait."""
        return {
            "capture": self._why_away,
            **{server: partial(self._why_server_away, server) for server in SERVERS},
        }

    @property
    def queued(self) -> int:
        """Exchanges not published yet."""
        return self._counts.queued

    @property
    def published(self) -> int:
        """Exchanges that Kafka has."""
        return self._counts.published

    def begin(self, size: int, head: int = 0) -> Ticket | None:
        """An exchange is seen; `size` bytes are reserved (0: not known yet), and room for a request
        head of `head` bytes (`head_size`).

        None: no budget; it is counted as dropped and passes through uncaptured.
        """
        if self._stopping:
            self._counts.refuse("stopping")
            return None
        if not self._budget.take(reservation(head, size, self._body_bytes)):
            self._counts.refuse("no_budget")
            return None
        return Ticket(
            self._budget,
            self._take_over,
            self._refuse,
            head=head,
            size=size,
            body_bytes=self._body_bytes,
            chunks=self._chunks,
        )

    async def start(self) -> None:
        """Begin to capture. Raises OSError where the spool's folder cannot be used."""
        root = self._settings.proxy_spool_directory
        if self._settings.proxy_spool != "off" and root is not None:
            # Held here too: nobody may inherit the folder while a new process begins.
            self._lock = await asyncio.to_thread(made_folder, root, self.producer)
        self._process.begin()

    async def stop(self, grace_seconds: float) -> int:
        """Publish what is there, for so long; how many exchanges are left then, in the spool or
        lost (the books and the log say which). New exchanges are refused from now on."""
        if self._left is None:
            self._stopping = True
            self._page.cells[Cell.DEADLINE] = time.monotonic_ns() + int(grace_seconds * 1e9)
            await self._process.end(asyncio.get_running_loop().time() + grace_seconds)
            self._left = self._counts.queued + self._counts.dropped.get("left", 0)
            if self._lock >= 0:
                os.close(self._lock)
            self._page.close()
        return self._left

    def _take_over(self, work: Work, reserved: int) -> None:
        if self._stopping:
            self._counts.refuse("stopping")
            self._budget.give_back(reserved)
            return
        self._counts.see()
        self._process.hand(self._writer.exchange(work, reserved), reserved)

    def _start_one(self, connection: socket.socket) -> Started:
        return self._start(connection, self._page.file, self._lock)

    def _first_words(self, handed: int) -> Buffers:
        hello = Hello(
            settings=self._settings,
            producer=self.producer,
            booted_at=self._counts.booted_at,
            handed=handed,
        )
        return [hello.frame(), *self._writer.rules]

    def _has_ended(self, handed_bytes: int) -> None:
        """The capture process holds nothing any more, and says nothing."""
        self._page.cells[Cell.FREED] = handed_bytes
        self.metrics.begin_anew()
        self._page.cells[Cell.TELLING] = 0
        self._last_told = {}

    def _told(self) -> Mapping[str, Any]:
        """What the capture process says of itself; empty where it has not said anything yet."""
        text = self._page.told()
        if text is not None:
            self._last_told = orjson.loads(text)
        return self._last_told

    async def _why_away(self) -> str | None:
        process = self._process
        if process.age > _SILENT_SECONDS and not self._page.cells[Cell.TELLING]:
            return "the capture process was started and does not begin: it hangs, or finds no CPU"
        return process.why_away

    async def _why_server_away(self, server: Server) -> str | None:
        why: str | None = self._told().get("unavailable", {}).get(server)
        return why

    def _begin_metrics(self) -> None:
        from_zero(CAPTURES, ("seen", "dropped"))
        from_zero(CAPTURES_DROPPED, DROP_REASONS)
        CAPTURE_BUDGET.set(self._budget.limit)
        CAPTURE_BYTES.set_function(lambda: self._budget.held)
        CAPTURE_QUEUE.set_function(lambda: self._counts.queued)
