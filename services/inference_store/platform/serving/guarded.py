"""A connection with time limits, whichever server speaks on it.

Between requests it may be idle, and then the head of the next has its time. While a request is
answered the connection may be silent as long as it takes; but what is written has to be read. The
time of a body is where the body is read (`request_bodies`).
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
    """For the caller to read some of what is written."""


class Guarded(asyncio.Protocol):
    """Passes everything on to the server's own protocol, and closes what takes too long.

    The application finds it by `current`, and says with `begin` and `end` when it answers.
    """

    def __init__(
        self, inner: asyncio.Protocol, limits: Limits, connections: Connections, address: str
    ) -> None:
        """`connections` have counted it in already."""
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
        """Whether it will be told of its end, and be released then."""
        return self._transport is not None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by its class
        self._expect(self.limits.head)
        with self._named():
            self._inner.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if self._is_idle:
            self._is_idle = False
            self._expect(self.limits.head)
        with self._named():
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
        """A request is answered from now on."""
        self._requests += 1
        self._expect(None)

    def end(self) -> None:
        """An answer is over."""
        self._requests -= 1
        self._is_idle = True
        self._expect(self.limits.idle)

    def close(self, late: Late) -> None:
        """Close at once, whatever is still to be written; `late`: what took too long."""
        self._connections.count_late(late)
        if self._transport is not None:
            self._transport.abort()

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Tasks that the server begins inside find this connection."""
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)

    def _expect(self, seconds: float | None) -> None:
        """Close if nothing changes for so long; None: wait."""
        if self._timer is not None:
            self._timer.cancel()
        if seconds is not None and not self._requests:
            self._timer = self._loop.call_later(seconds, self._end)

    def _end(self) -> None:
        self.close("idle" if self._is_idle else "head")


_current: ContextVar[Guarded | None] = ContextVar("connection", default=None)


def current() -> Guarded | None:
    """The connection that the request of this task came over; None: one without limits."""
    return _current.get()
