"""The time that a request's body has to come: some seconds, and more as it comes."""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final, TypeAlias

from .guarded import Guarded, current

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

LEAST_RATE: Final = 500
"""Bytes a second that a body has to come with, once its seconds are over."""


class Served:
    """An application of ASGI that tells each connection when it answers, and that waits for a body
    no longer than it may take. Time in which the application does not read is not counted."""

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
    """Reads a body, within its time."""

    def __init__(self, receive: Receive, connection: Guarded) -> None:
        self._receive = receive
        self._connection = connection
        self._left = connection.limits.body
        self._is_whole = False

    async def __call__(self) -> Message:
        if self._is_whole:  # whoever asks on waits for the caller to leave
            return await self._receive()
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            async with asyncio.timeout(max(0.0, self._left)):
                message = await self._receive()
        except TimeoutError:
            self._connection.close("body")
            return await self._receive()  # that it is closed
        self._left += len(message.get("body", b"")) / LEAST_RATE - (loop.time() - began)
        self._is_whole = not message.get("more_body", False)
        return message
