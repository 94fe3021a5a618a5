"""Captures are told how large heads are: a large one takes its place in the budget."""

from typing import Any

from aiohttp import ClientSession, web

from .grpc_upstream import INFER, line, unary
from .rest_server import Kept, proxy, upstream


async def test_rest_tells_the_size_of_target_and_headers() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        await request.read()
        return web.Response()

    async with upstream(answer) as port, proxy(port, kept := Kept()) as before:
        url = f"http://127.0.0.1:{before}/v2/models/m/infer"
        async with ClientSession() as session:
            for headers, query in (({}, ""), ({"x-large": "x" * 5000}, "?" + "q" * 1000)):
                async with session.post(url + query, data=b"{}", headers=headers) as found:
                    assert found.status == 200
    small, large = kept.heads
    assert small < 2000
    assert 6000 < large - small < 6200


async def test_grpc_tells_the_size_of_the_metadata() -> None:
    async def answer(context: Any) -> None:
        await context.write(await context.read())

    async with line() as started:
        started.upstream.behaviours[INFER] = answer
        await unary(started.proxied, INFER, b"asked", metadata=[("x-large", "x" * 5000)])
        assert 5000 < started.captures.head < 7000
