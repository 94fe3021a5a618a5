"""Streams over connections that break: whole, in order, each once."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import chain, repeat
from random import Random
from typing import Any
from urllib.parse import urlsplit

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store_client import Retries
from tests.both_clients import Client
from tests.integration.api.app_server import serve_app
from tests.integration.api.conftest import MakeApp
from tests.integration.stored_inferences import NewInference, at
from tests.integration.stored_inferences import store as store_inferences

_LOOPBACK = "127.0.0.1"
_PIECE = 4096


async def _nothing() -> None:
    """Do nothing at a cut."""


@dataclass(slots=True)
class CuttingProxy:
    """Passes bytes between a client and the server at `target`.

    `budgets`: how many bytes of answers each connection passes; None: all. The odd cuts close the
    connection, the even ones reset it.
    """

    target: str
    budgets: Iterator[int | None]
    at_cut: Callable[[], Awaitable[None]] = _nothing
    port: int = 0
    cuts: int = 0
    tasks: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def url(self) -> str:
        return f"http://{_LOOPBACK}:{self.port}"

    async def connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.tasks.add(task)
        try:
            with suppress(OSError):
                await self._connect(reader, writer)
        finally:
            await _close(writer)
            self.tasks.discard(task)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        parts = urlsplit(self.target)
        answers, requests = await asyncio.open_connection(parts.hostname, parts.port)
        passing = asyncio.create_task(_pass_all(reader, requests))
        try:
            await self._pass_answers(answers, writer)
        finally:
            passing.cancel()
            await _close(requests)

    async def _pass_answers(
        self, answers: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        budget = next(self.budgets)
        while piece := await answers.read(_PIECE):
            if budget is not None and len(piece) >= budget:
                await self._cut(piece[:budget], writer)
                return
            budget = None if budget is None else budget - len(piece)
            writer.write(piece)
            await writer.drain()

    async def _cut(self, piece: bytes, writer: asyncio.StreamWriter) -> None:
        self.cuts += 1
        writer.write(piece)
        await writer.drain()
        await self.at_cut()
        if self.cuts % 2 == 0:
            writer.transport.abort()


async def _close(writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        writer.close()
        await writer.wait_closed()


async def _pass_all(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while piece := await reader.read(_PIECE):
            writer.write(piece)
            await writer.drain()


@asynccontextmanager
async def cutting_proxy(target: str, budgets: Iterator[int | None]) -> AsyncIterator[CuttingProxy]:
    proxy = CuttingProxy(target, budgets)
    server = await asyncio.start_server(proxy.connect, _LOOPBACK, 0)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()
        for task in [*proxy.tasks]:
            task.cancel()
        await asyncio.gather(*proxy.tasks, return_exceptions=True)


_COUNT = 3000
_PATIENT = Retries(attempts=500, first_wait_seconds=0.001, longest_wait_seconds=0.05)
_EXPECTED = [f"id-{number}" for number in reversed(range(_COUNT))]


@pytest.fixture(autouse=True)
async def _stored(engine: AsyncEngine) -> None:
    inferences = [
        NewInference(f"id-{number}", at(number), [("n", "int", str(number))], [("person", 0.5)])
        for number in range(_COUNT)
    ]
    await store_inferences(engine, *inferences)


@pytest.fixture
async def proxy(make_app: MakeApp) -> AsyncIterator[CuttingProxy]:
    """A proxy before the api, which cuts nothing yet."""
    async with (
        serve_app(make_app()) as http,
        cutting_proxy(str(http.base_url), repeat(None)) as cutting,
    ):
        yield cutting


def draw_budgets(seed: int, most: int) -> Iterator[int]:
    chance = Random(seed)
    while True:
        yield chance.randint(1, most)


async def read_ids(both: Client, inferences: Any) -> list[str]:
    return [inference.inference_id for inference in await both.list(inferences.stream)]


async def test_a_sample_and_columns_that_are_cut_are_the_same(
    proxy: CuttingProxy, both: Client
) -> None:
    async with both.open_store(proxy.url, retries=_PATIENT) as store:
        whole = await both.list(store.model("model").inferences().sample(1500, seed=3).stream)
        proxy.budgets = draw_budgets(1, 25_000)
        # a connection of its own is cut
        async with both.open_store(proxy.url, retries=_PATIENT) as other:
            inferences = other.model("model").inferences()
            cut = await both.list(inferences.sample(1500, seed=3).stream)
            cuts = proxy.cuts
            array = await both.ask(inferences.to_arrow)
    assert 3 < cuts < proxy.cuts - 1
    assert cut == whole
    assert len({inference.uid for inference in cut}) == 1500
    names = [member.name for member in array.schema.fields]
    assert array.child(names.index("inference_id")).to_pylist() == _EXPECTED
    assert array.child(names.index("metadata.n")).to_pylist() == [*reversed(range(_COUNT))]


async def test_a_server_may_restart(make_app: MakeApp, proxy: CuttingProxy, both: Client) -> None:
    async with AsyncExitStack() as stack:
        first = AsyncExitStack()
        proxy.target = str((await first.enter_async_context(serve_app(make_app()))).base_url)
        proxy.budgets = chain([30_000], repeat(None))

        async def restart() -> None:
            await first.aclose()
            http = await stack.enter_async_context(serve_app(make_app()))
            proxy.target = str(http.base_url)

        proxy.at_cut = restart
        store = await stack.enter_async_context(both.open_store(proxy.url, retries=_PATIENT))
        assert await read_ids(both, store.model("model").inferences()) == _EXPECTED
    assert proxy.cuts == 1
