"""A port: its sockets, and the connections that it takes.

A refused connection is closed at once: the caller learns it sooner than from a stuck queue.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

import structlog

from inference_store.platform.settings import WrongSetting

from .connections import Connections
from .guarded_connection import GuardedConnection, Limits

_HANDSHAKE_SECONDS: Final = 15.0
_SHORT_OF_FILES_SECONDS: Final = 0.5
_log = structlog.get_logger()


class PortTaken(WrongSetting):
    """The address cannot be listened on; the text names the settings."""


def listen(host: str, port: int, *, setting: str, backlog: int = 512) -> list[socket.socket]:
    """Return sockets that listen on each address of a host. `setting`: the settings' names, without
    `_HOST` and `_PORT`. Raises PortTaken."""
    settings = f"INFERENCE_STORE_{setting}_HOST and INFERENCE_STORE_{setting}_PORT"
    sockets: list[socket.socket] = []
    try:
        addresses = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        for family, kind, protocol, _, address in dict.fromkeys(addresses):
            sockets.append(listening := socket.socket(family, kind, protocol))
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            # a free port that was chosen for the first address is used for the others, too
            listening.bind((address[0], sockets[0].getsockname()[1] or port, *address[2:]))
            listening.listen(backlog)
            listening.setblocking(False)
    except OSError as error:
        for listening_socket in sockets:
            listening_socket.close()
        reason = error.strerror or str(error)
        raise PortTaken(f"cannot listen on {host}:{port}: {reason}. Change {settings}.") from None
    return sockets


class Listener:
    """Takes connections from listening sockets, for a server's own protocols."""

    def __init__(
        self,
        sockets: Sequence[socket.socket],
        protocol: Callable[[], asyncio.Protocol],
        connections: Connections,
        limits: Limits,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._sockets = sockets
        self._protocol = protocol
        self._connections = connections
        self._limits = limits
        self._tls = tls
        self._tasks = [
            asyncio.create_task(self._accept_connections(listening)) for listening in sockets
        ]
        self._opening: set[asyncio.Task[None]] = set()

    async def stop(self) -> None:
        """Take no more connections, and close the sockets; open connections continue."""
        for task in (*self._tasks, *self._opening):
            task.cancel()
        await asyncio.gather(*self._tasks, *self._opening, return_exceptions=True)
        for listening in self._sockets:
            listening.close()

    async def _accept_connections(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, address = await loop.sock_accept(listening)
            except ConnectionError:
                continue
            except OSError as error:  # no file descriptors, for one
                _log.error("no connection taken", action="accept_failed", error=str(error))
                await asyncio.sleep(_SHORT_OF_FILES_SECONDS)
                continue
            if self._connections.take(address[0]):
                task = loop.create_task(self._open(accepted, address[0]))
                self._opening.add(task)
                task.add_done_callback(self._opening.discard)
            else:
                accepted.close()

    async def _open(self, accepted: socket.socket, address: str) -> None:
        """Open a connection. It is released once, by itself or, if it never began, here."""
        guarded: list[GuardedConnection] = []

        def protocol() -> GuardedConnection:
            guarded.append(
                GuardedConnection(self._protocol(), self._limits, self._connections, address)
            )
            return guarded[0]

        handshake = None if self._tls is None else _HANDSHAKE_SECONDS
        try:
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await asyncio.get_running_loop().connect_accepted_socket(
                protocol, accepted, ssl=self._tls, ssl_handshake_timeout=handshake
            )
        except BaseException as error:
            if not (guarded and guarded[0].has_begun):
                self._connections.release(address)
                with suppress(OSError):
                    accepted.close()
            if not isinstance(error, Exception):
                raise
