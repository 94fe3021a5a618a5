"""The store, asked by ordinary functions; `asynchronous` has the same, for an event loop."""

import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Self, TypeVar

import httpx

from inference_store_client import exporting, methods, replaying
from inference_store_client.http_clients import open_http
from inference_store_client.settings import ClientSettings
from inference_store_client.transport import MOST_JOBS, TIMEOUT, Blocking, HttpTransport, Jobs, run

T = TypeVar("T")


class BlockingTransport(HttpTransport):
    """Blocks, so that its coroutines never wait: `run` takes each to its end."""

    http: httpx.Client

    def __init__(self, settings: ClientSettings, http: httpx.Client | None = None) -> None:
        super().__init__(settings, is_owned=http is None)
        self.http = http or open_http(lambda: httpx.Client(timeout=TIMEOUT))

    async def _send(self, message: httpx.Request, **options: Any) -> httpx.Response:
        return self.http.send(message, **options)

    async def _iterate(self, response: httpx.Response) -> AsyncIterator[bytes]:
        for piece in response.iter_bytes():
            yield piece

    async def _close(self, opened: Any) -> None:
        opened.close()

    async def sleep(self, seconds: float) -> None:
        """Sleep."""
        time.sleep(seconds)  # noqa: ASYNC251 -- there is no loop

    async def call(self, function: Callable[[], T]) -> T:
        """Call it."""
        return function()

    @asynccontextmanager
    async def open_jobs(self) -> AsyncIterator[Jobs]:
        """Do jobs in threads."""

        async def finish(job: Future[Any]) -> Any:
            return job.result()

        threads = ThreadPoolExecutor(MOST_JOBS)
        try:
            yield Jobs(lambda steps: threads.submit(lambda: run(steps())), finish)
        finally:
            threads.shutdown(cancel_futures=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Export(exporting.ExportMethods["Export"], Blocking):
    """An export as it was when it was read; each method asks the store again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inference(methods.InferenceMethods, Blocking):
    """One datum and what the model answered, and what can be done with them."""


class Groups(methods.GroupsMethods, Blocking):
    """The inferences that match, by groups."""


class Inferences(methods.InferencesMethods[Inference, Groups, Export], Blocking):
    """The inferences that match. Building one sends nothing; each method sends a new request."""

    _inference, _groups, _export = Inference, Groups, Export

    def __len__(self) -> int:
        return self.count()

    def __bool__(self) -> bool:
        """Ask nothing: a question is always true, as `AsyncInferences` is."""
        return True

    def _repr_html_(self) -> str:
        return self.html()

    def __iter__(self) -> Iterator[Inference]:
        return self.stream()


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay(replaying.ReplayMethods["Replay"], Blocking):
    """A replay as it was when it was read; each method asks the store again."""


class Model(methods.ModelMethods[Inference, Inferences, Replay], Blocking):
    """One model of the store. Making one asks nothing."""

    _inference, _inferences, _replay = Inference, Inferences, Replay


class Store(methods.StoreMethods[Model, Inferences, Export, httpx.Client], Blocking):
    """An Inference Store.

    `url` and `key` default to INFERENCE_STORE_URL and INFERENCE_STORE_KEY, and then to
    `~/.config/inference-store/config.toml`. Without a key, the tokens of `istore login` are sent.
    `http_client` is used as it is, and not closed.
    """

    _model, _inferences, _export = Model, Inferences, Export
    _make_transport = BlockingTransport

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
