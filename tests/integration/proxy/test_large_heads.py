"""Captures get the size of heads: a large one counts against the budget."""

from typing import Any

from aiohttp import ClientSession, web

from .grpc_upstream import INFER, call_unary, start_proxy
from .rest_server import FakeCaptures, proxy, upstream


async def test_rest_reports_the_size_of_target_and_headers() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        await request.read()
        return web.Response()

    async with upstream(answer) as port, proxy(port, captures := FakeCaptures()) as before:
        url = f"http://127.0.0.1:{before}/v2/models/m/infer"
        async with ClientSession() as session:
            for headers, query in (({}, ""), ({"x-large": "x" * 5000}, "?" + "q" * 1000)):
                async with session.post(url + query, data=b"{}", headers=headers) as response:
                    assert response.status == 200
    small, large = captures.heads
    assert small < 2000
    assert 6000 < large - small < 6200


async def test_grpc_reports_the_size_of_the_metadata() -> None:
    async def answer(context: Any) -> None:
        await context.write(await context.read())

    async with start_proxy() as setup:
        setup.upstream.behaviours[INFER] = answer
        await call_unary(setup.proxied, INFER, b"asked", metadata=[("x-large", "x" * 5000)])
        assert 5000 < setup.captures.head < 7000
