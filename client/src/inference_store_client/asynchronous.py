"""The store, asked in an event loop; `sync` has the same as ordinary functions."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Self, TypeVar

import httpx

from inference_store_client import exporting, methods, replaying
from inference_store_client.http_clients import open_http
from inference_store_client.settings import ClientSettings
from inference_store_client.transport import TIMEOUT, Awaited, HttpTransport, Jobs

T = TypeVar("T")


class AsyncTransport(HttpTransport):
    """Waits in the event loop."""

    http: httpx.AsyncClient

    def __init__(self, settings: ClientSettings, http: httpx.AsyncClient | None = None) -> None:
        super().__init__(settings, is_owned=http is None)
        self.http = http or open_http(lambda: httpx.AsyncClient(timeout=TIMEOUT))

    async def _send(self, message: httpx.Request, **options: Any) -> httpx.Response:
        return await self.http.send(message, **options)

    def _iterate(self, response: httpx.Response) -> AsyncIterator[bytes]:
        return response.aiter_bytes()

    async def _close(self, opened: Any) -> None:
        await opened.aclose()

    async def sleep(self, seconds: float) -> None:
        """Let others go on."""
        await asyncio.sleep(seconds)

    async def call(self, function: Callable[[], T]) -> T:
        """Call it in a thread; a cancellation waits for its end, so that a folder can go."""
        calling = asyncio.create_task(asyncio.to_thread(function))
        try:
            return await asyncio.shield(calling)
        finally:
            await asyncio.wait([calling])

    @asynccontextmanager
    async def open_jobs(self) -> AsyncIterator[Jobs]:
        """Do jobs in tasks."""
        tasks: set[asyncio.Task[Any]] = set()

        def begin(steps: Callable[[], Coroutine[Any, Any, Any]]) -> asyncio.Task[Any]:
            task = asyncio.create_task(steps())
            tasks.add(task)
            return task

        async def finish(task: asyncio.Task[Any]) -> Any:
            tasks.remove(task)
            return await task

        try:
            yield Jobs(begin, finish)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class AsyncExport(exporting.ExportMethods["AsyncExport"], Awaited):
    """An export as it was when it was read; each method asks the store again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AsyncInference(methods.InferenceMethods, Awaited):
    """One datum and what the model answered, and what can be done with them."""


class AsyncGroups(methods.GroupsMethods, Awaited):
    """The inferences that match, by groups."""


class AsyncInferences(methods.InferencesMethods[AsyncInference, AsyncGroups, AsyncExport], Awaited):
    """The inferences that match. Building one sends nothing; each method sends a new request."""

    _inference, _groups, _export = AsyncInference, AsyncGroups, AsyncExport

    def __aiter__(self) -> AsyncIterator[AsyncInference]:
        return self.stream()


@dataclass(frozen=True, slots=True, kw_only=True)
class AsyncReplay(replaying.ReplayMethods["AsyncReplay"], Awaited):
    """A replay as it was when it was read; each method asks the store again."""


class AsyncModel(methods.ModelMethods[AsyncInference, AsyncInferences, AsyncReplay], Awaited):
    """One model of the store. Making one asks nothing."""

    _inference, _inferences, _replay = AsyncInference, AsyncInferences, AsyncReplay


class AsyncStore(
    methods.StoreMethods[AsyncModel, AsyncInferences, AsyncExport, httpx.AsyncClient],
    Awaited,
):
    """An Inference Store.

    `url` and `key` default to INFERENCE_STORE_URL and INFERENCE_STORE_KEY, and then to
    `~/.config/inference-store/config.toml`. Without a key, the tokens of `istore login` are sent.
    `http_client` is used as it is, and not closed.
    """

    _model, _inferences, _export = AsyncModel, AsyncInferences, AsyncExport
    _make_transport = AsyncTransport

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
