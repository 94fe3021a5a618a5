"""The store, asked in an event loop; `sync` has the same as ordinary functions."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, closing
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TypeVar

import httpx

from inference_store_client import commands, methods
from inference_store_client.http_clients import open_http
from inference_store_client.messages import TIMEOUT, build_message, make_failure, read_head, renew
from inference_store_client.requests import Request
from inference_store_client.retries import DEFAULT_RETRIES, Retries
from inference_store_client.settings import ClientSettings, find_settings

T = TypeVar("T")


class AsyncTransport:
    """Sends requests with httpx. A client that is given is used as it is, and not closed."""

    def __init__(self, settings: ClientSettings, http: httpx.AsyncClient | None = None) -> None:
        self.settings = settings
        self.http = http or open_http(lambda: httpx.AsyncClient(timeout=TIMEOUT))
        self._is_owned = http is None
        self.has_answered = False

    async def run(self, steps: commands.Steps[T]) -> T:
        """Perform the commands, and return what they lead to."""
        [result] = [result async for result in self.iterate(commands.deliver_result(steps))]
        return result

    async def iterate(self, steps: commands.Deliveries[T]) -> AsyncGenerator[T]:
        """Perform the commands, and yield what they deliver."""
        outcome: commands.Outcome = None
        with closing(steps):
            async with aclosing(_Conversation(self)) as conversation:
                while True:
                    try:
                        command = steps.send(outcome)
                    except StopIteration:
                        return
                    outcome = None
                    if isinstance(command, commands.Deliver):
                        for item in command.items:
                            yield item
                    else:
                        outcome = await conversation.perform(command)

    async def close(self) -> None:
        """Close the connections."""
        if self._is_owned:
            await self.http.aclose()


class _Conversation:
    """The responses of one run of the core, one after the other, and the jobs beside it."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport
        self._response: httpx.Response | None = None
        self._pieces: AsyncIterator[bytes] | None = None
        self._jobs: set[asyncio.Task[Any]] = set()

    async def perform(self, command: commands.Action) -> commands.Outcome:  # noqa: PLR0911
        match command:
            case commands.Open(request):
                return await self._open(request)
            case commands.Read():
                return await self._read()
            case commands.Settings():
                return self._transport.settings
            case commands.Renew():
                return await asyncio.to_thread(renew, self._transport.settings)
            case commands.Wait(seconds):
                await asyncio.sleep(seconds)
            case commands.Call(function):
                return await _call(function)
            case commands.Begin(steps):
                job = asyncio.create_task(self._transport.run(steps))
                self._jobs.add(job)
                return job
            case commands.Finish(job):
                self._jobs.remove(job)
                return await job
            case commands.Close():
                await self._close_response()
        return None

    async def _open(self, request: Request) -> commands.Outcome:
        settings = self._transport.settings
        message = build_message(self._transport.http, settings, request)
        auth = httpx.USE_CLIENT_DEFAULT if settings.origin.has(str(message.url)) else None
        try:
            self._response = await self._transport.http.send(
                message, stream=True, follow_redirects=False, auth=auth
            )
        except httpx.RequestError as error:
            return make_failure(error, settings, is_known=self._transport.has_answered)
        self._transport.has_answered = True
        self._pieces = self._response.aiter_bytes()
        return read_head(self._response)

    async def _read(self) -> commands.Outcome:
        assert self._pieces is not None
        try:
            return await anext(self._pieces, b"")
        except httpx.RequestError as error:
            return make_failure(error, self._transport.settings)

    async def _close_response(self) -> None:
        if self._response is not None:
            await self._response.aclose()
            self._response = None

    async def aclose(self) -> None:
        for job in self._jobs:
            job.cancel()
        await asyncio.gather(*self._jobs, return_exceptions=True)
        await self._close_response()


async def _call(function: Callable[[], Any]) -> Any:
    """Call in a thread; a cancellation waits for its end, so that a folder can go."""
    calling = asyncio.create_task(asyncio.to_thread(function))
    try:
        return await asyncio.shield(calling)
    finally:
        await asyncio.wait([calling])


@dataclass(frozen=True, slots=True, kw_only=True)
class AsyncExport(methods.ExportMethods["AsyncExport"], methods.Awaited):
    """An export as it was when it was read; each method asks the store again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AsyncInference(methods.InferenceMethods, methods.Awaited):
    """One datum and what the model answered, and what can be done with them."""


class AsyncGroups(methods.GroupsMethods, methods.Awaited):
    """The inferences that match, by groups."""


class AsyncInferences(
    methods.InferencesMethods[AsyncInference, AsyncGroups, AsyncExport], methods.Awaited
):
    """The inferences that match. Building one sends nothing; each method sends a new request."""

    _inference, _groups, _export = AsyncInference, AsyncGroups, AsyncExport

    def __aiter__(self) -> AsyncIterator[AsyncInference]:
        return self.stream()


class AsyncModel(methods.ModelMethods[AsyncInference, AsyncInferences], methods.Awaited):
    """One model of the store. Making one asks nothing."""

    _inference, _inferences = AsyncInference, AsyncInferences


class AsyncStore(methods.StoreMethods[AsyncModel, AsyncInferences, AsyncExport], methods.Awaited):
    """An Inference Store.

    `url` and `key` default to INFERENCE_STORE_URL and INFERENCE_STORE_KEY, and then to
    `~/.config/inference-store/config.toml`. Without a key, the tokens of `istore login` are sent.
    `http_client` is used as it is, and not closed.
    """

    _model, _inferences, _export = AsyncModel, AsyncInferences, AsyncExport
    _transport: AsyncTransport

    def __init__(
        self,
        url: str | None = None,
        key: str | None = None,
        *,
        retries: Retries = DEFAULT_RETRIES,
        http_client: httpx.AsyncClient | None = None,
    ) -> None:
        self._transport = AsyncTransport(find_settings(url, key, retries=retries), http_client)

    async def close(self) -> None:
        """Close the connections."""
        await self._transport.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()
