"""Limits the time of a request's body: some seconds, and more as it arrives."""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final, TypeAlias

from .guarded_connection import GuardedConnection, current

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

LEAST_RATE: Final = 500
"""The bytes per second that a body needs to arrive with, once its seconds are over."""


class Served:
    """An application of ASGI that tells each connection when it answers, and limits the wait for a
    body. Time in which the application does not read is not counted."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        connection = current()
        if scope["type"] != "http" or connection is None:
            await self._app(scope, receive, send)
            return
        connection.begin()
        try:
            await self._app(scope, _Body(receive, connection), send)
        finally:
            connection.end()


class _Body:
    """Reads a body within its time limit."""

    def __init__(self, receive: Receive, connection: GuardedConnection) -> None:
        self._receive = receive
        self._connection = connection
        self._seconds_left = connection.limits.body
        self._is_whole = False

    async def __call__(self) -> Message:
        if self._is_whole:  # a further call waits for the caller to leave
            return await self._receive()
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            async with asyncio.timeout(max(0.0, self._seconds_left)):
                message = await self._receive()
        except TimeoutError:
            self._connection.close("body")
            self._is_whole = True  # what still arrives must not be counted as late again
            return await self._receive()  # the message that it is closed
        self._seconds_left += len(message.get("body", b"")) / LEAST_RATE - (loop.time() - began)
        self._is_whole = not message.get("more_body", False)
        return message
