"""A connection with time limits, for any server.

Between requests it may be idle for a time, and then the head of the next one has a time limit.
While a request is answered the connection may be silent; but the caller has to read what is
written. The time limit of a body is where the body is read (`request_bodies`).
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import cast

from .connections import Connections, Late


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Seconds."""

    head: float = 20.0
    """From a request's first byte, or the connection's beginning, to the end of its head."""
    idle: float = 75.0
    """From an answer to the first byte of the next request."""
    body: float = 30.0
    """For a request's body, and more as it comes (`request_bodies`)."""
    write: float = 60.0
    """For the caller to read a part of what is written."""


class GuardedConnection(asyncio.Protocol):
    """Forwards everything to the server's own protocol, and closes it if it takes too long.

    The application finds it by `current`, and calls `begin` and `end` around an answer.
    """

    def __init__(
        self, inner: asyncio.Protocol, limits: Limits, connections: Connections, address: str
    ) -> None:
        """`connections` have already counted it."""
        self.limits = limits
        self._inner = inner
        self._connections = connections
        self._address = address
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._requests = 0
        self._is_idle = False
        self._timer: asyncio.TimerHandle | None = None
        self._stalled: asyncio.TimerHandle | None = None

    @property
    def has_begun(self) -> bool:
        """True if `connection_lost` will be called, and releases it."""
        return self._transport is not None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transport has another class
        self._expect(self.limits.head)
        with self._make_current():
            self._inner.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if self._is_idle:
            self._is_idle = False
            self._expect(self.limits.head)
        with self._make_current():
            self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        return self._inner.eof_received()

    def pause_writing(self) -> None:
        self._stalled = self._loop.call_later(self.limits.write, self.close, "write")
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
        self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._timer, self._stalled):
            if timer is not None:
                timer.cancel()
        self._connections.release(self._address)
        self._inner.connection_lost(exc)

    def begin(self) -> None:
        """Note that a request is answered from now on."""
        self._requests += 1
        self._expect(None)

    def end(self) -> None:
        """Note the end of an answer."""
        self._requests -= 1
        self._is_idle = True
        self._expect(self.limits.idle)

    def close(self, late: Late) -> None:
        """Close at once, whatever is still to be written; `late`: what took too long."""
        self._connections.count_late(late)
        if self._transport is not None:
            self._transport.abort()

    @contextmanager
    def _make_current(self) -> Iterator[None]:
        """Let tasks that the server begins inside find this connection."""
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)

    def _expect(self, seconds: float | None) -> None:
        """Close after `seconds` without a change; None: wait."""
        if self._timer is not None:
            self._timer.cancel()
        if seconds is not None and not self._requests:
            self._timer = self._loop.call_later(seconds, self._end)

    def _end(self) -> None:
        self.close("idle" if self._is_idle else "head")


_current: ContextVar[GuardedConnection | None] = ContextVar("connection", default=None)


def current() -> GuardedConnection | None:
    """Return the connection of this task's request; None if it has no limits."""
    return _current.get()
