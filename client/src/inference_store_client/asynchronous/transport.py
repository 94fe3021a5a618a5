"""Performs the core's commands in an event loop."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any, TypeVar

import httpx

from inference_store_client.commands import (
    Close,
    Command,
    Deliver,
    Open,
    Outcome,
    Read,
    Renew,
    Steps,
    Wait,
)
from inference_store_client.http_clients import open_http
from inference_store_client.messages import (
    TIMEOUT,
    build_message,
    make_failure,
    read_head,
    renew,
)
from inference_store_client.requests import Request
from inference_store_client.settings import ClientSettings

T = TypeVar("T")


class AsyncTransport:
    """Sends requests with httpx. A client that is given is used as it is, and not closed."""

    def __init__(self, settings: ClientSettings, http: httpx.AsyncClient | None = None) -> None:
        self.settings = settings
        self._http = http or open_http(lambda: httpx.AsyncClient(timeout=TIMEOUT))
        self._is_owned = http is None

    async def run(self, steps: Steps[T]) -> T:
        """Perform the commands, and return what they lead to."""
        outcome: Outcome = None
        async with aclosing(_Conversation(self._http, self.settings)) as conversation:
            while True:
                try:
                    command = steps.send(outcome)
                except StopIteration as end:
                    result: T = end.value
                    return result
                outcome = await conversation.perform(command)

    async def iterate(self, steps: Steps[None]) -> AsyncGenerator[Any]:
        """Perform the commands, and yield what they deliver."""
        outcome: Outcome = None
        async with aclosing(_Conversation(self._http, self.settings)) as conversation:
            while True:
                try:
                    command = steps.send(outcome)
                except StopIteration:
                    return
                outcome = None
                if isinstance(command, Deliver):
                    for item in command.items:
                        yield item
                else:
                    outcome = await conversation.perform(command)

    async def close(self) -> None:
        """Close the connections."""
        if self._is_owned:
            await self._http.aclose()


class _Conversation:
    """The responses of one run of the core, one after the other."""

    def __init__(self, http: httpx.AsyncClient, settings: ClientSettings) -> None:
        self._http, self._settings = http, settings
        self._response: httpx.Response | None = None
        self._pieces: AsyncIterator[bytes] | None = None

    async def perform(self, command: Command) -> Outcome:
        match command:
            case Open(request):
                return await self._open(request)
            case Read():
                return await self._read()
            case Renew():
                return await asyncio.to_thread(renew, self._settings)
            case Wait(seconds):
                await asyncio.sleep(seconds)
            case Close():
                await self.aclose()
        return None

    async def _open(self, request: Request) -> Outcome:
        message = build_message(self._http, self._settings, request)
        is_home = self._settings.origin.has(str(message.url))
        auth = httpx.USE_CLIENT_DEFAULT if is_home else None
        try:
            self._response = await self._http.send(
                message, stream=True, follow_redirects=False, auth=auth
            )
        except httpx.RequestError as error:
            return make_failure(error, self._settings)
        self._pieces = self._response.aiter_bytes()
        return read_head(self._response)

    async def _read(self) -> Outcome:
        assert self._pieces is not None
        try:
            return await anext(self._pieces, b"")
        except httpx.RequestError as error:
            return make_failure(error, self._settings)

    async def aclose(self) -> None:
        if self._response is not None:
            await self._response.aclose()
            self._response = None
