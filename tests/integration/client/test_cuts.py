"""Streams over connections that break, before two servers in turn: whole, in order, each once."""

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from itertools import cycle, repeat
from random import Random

import httpx
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store_client import Retries
from tests.both_clients import Client, CutStream
from tests.integration.api.app_server import serve_app
from tests.integration.api.conftest import MakeApp
from tests.integration.stored_inferences import NewInference, at
from tests.integration.stored_inferences import store as store_inferences

_COUNT, _SAMPLE = 3000, 1500
_PATIENT = Retries(attempts=500, first_wait_seconds=0.001, longest_wait_seconds=0.05)
_EXPECTED = [f"id-{number}" for number in reversed(range(_COUNT))]


@dataclass(slots=True)
class Cutter:
    """Passes requests on, each to the next server. `budgets`: how many bytes of each answer come;
    None: all."""

    servers: Iterator[httpx.URL]
    budgets: Iterator[int | None] = field(default_factory=lambda: repeat(None))
    cuts: int = 0

    def pass_on(self, request: httpx.Request) -> httpx.Response:
        with httpx.Client(timeout=None) as http:
            return self._cut(http.send(self._redirect(request)))

    async def pass_on_in_loop(self, request: httpx.Request) -> httpx.Response:
        async with httpx.AsyncClient(timeout=None) as http:
            return self._cut(await http.send(self._redirect(request)))

    def _redirect(self, request: httpx.Request) -> httpx.Request:
        server = next(self.servers)
        url = request.url.copy_with(scheme=server.scheme, host=server.host, port=server.port)
        headers = {name: request.headers[name] for name in ("accept", "content-type")}
        return httpx.Request(request.method, url, headers=headers, content=request.content)

    def _cut(self, answer: httpx.Response) -> httpx.Response:
        kind = {"Content-Type": answer.headers["Content-Type"]}
        budget, content = next(self.budgets), answer.content
        if budget is None or budget >= len(content):
            return httpx.Response(answer.status_code, headers=kind, content=content)
        self.cuts += 1
        return httpx.Response(answer.status_code, headers=kind, stream=CutStream(content[:budget]))


def draw_budgets(seed: int, most: int) -> Iterator[int]:
    chance = Random(seed)
    while True:
        yield chance.randint(1, most)


@pytest.fixture
async def cutter(make_app: MakeApp, engine: AsyncEngine) -> AsyncIterator[Cutter]:
    """A proxy in front of two servers with the same inferences, which does not cut answers yet."""
    inferences = [
        NewInference(f"id-{number}", at(number), [("n", "int", str(number))], [("person", 0.5)])
        for number in range(_COUNT)
    ]
    await store_inferences(engine, *inferences)
    async with serve_app(make_app()) as first, serve_app(make_app()) as second:
        yield Cutter(cycle([first.base_url, second.base_url]))


async def test_streams_samples_and_columns_that_are_cut_are_whole(
    cutter: Cutter, both: Client
) -> None:
    handler = cutter.pass_on if both.name == "sync" else cutter.pass_on_in_loop
    inferences = both.make_answered(handler, retries=_PATIENT).model("model").inferences("n >= 0")
    whole = await both.list(inferences.sample(_SAMPLE, seed=3).stream)
    cutter.budgets = draw_budgets(1, 200_000)
    every = await both.list(inferences.stream)
    cuts = [cutter.cuts]
    sample = await both.list(inferences.sample(_SAMPLE, seed=3).stream)
    cuts.append(cutter.cuts)
    array = await both.ask(inferences.to_arrow)
    assert 3 < cuts[0] < cuts[1] - 1 < cutter.cuts - 2
    assert [inference.inference_id for inference in every] == _EXPECTED
    assert sample == whole
    assert len({inference.uid for inference in sample}) == _SAMPLE
    names = [member.name for member in array.schema.fields]
    assert array.child(names.index("inference_id")).to_pylist() == _EXPECTED
    assert array.child(names.index("metadata.n")).to_pylist() == [*reversed(range(_COUNT))]
