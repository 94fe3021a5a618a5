"""A call is captured however its path is spelt, and its path goes on as it came."""

import pytest
from aiohttp import web

from .rest_server import Kept, proxy, raw, upstream
from .test_watched_calls import counted, new

PREFIX = "/api/serve/serve-model-7-pred"


def request(path: str) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nConnection: close\r\n\r\n"
    return head.encode() + b"{}"


@pytest.mark.parametrize(
    "path",
    [
        "/v2/models/x/%69nfer",
        "/v2/%6dodels/x/infer",
        "/v2//models/./x/infer",
        "/v2/models/y/../x/infer",
        "/v2%2Fmodels%2Fx%2Finfer",
        PREFIX + "/v2/models/x/infer/",
        PREFIX + "/v2/models/x/%69nfer",
    ],
)
async def test_a_path_is_recognised_however_it_is_spelt(path: str) -> None:
    paths: list[str] = []

    async def answer(call: web.Request) -> web.StreamResponse:
        paths.append(call.raw_path)
        return web.json_response({"outputs": []})

    async with upstream(answer) as port, proxy(port, kept := Kept()) as before:
        assert (await raw(before, request(path))).startswith(b"HTTP/1.1 200")
        exchange = await kept.first()
    assert paths == [path] == [exchange.path]
    _, call, _, model = kept.exchanges[0]
    assert (call.model, model) == ("x", "x")


async def test_what_may_be_an_inference_and_is_not_recognised_is_counted() -> None:
    async def answer(_: web.Request) -> web.StreamResponse:
        return web.json_response({})

    was, passed = counted("unrecognised", "one"), counted("none", "one")
    async with upstream(answer) as port, proxy(port, kept := Kept()) as before:
        await raw(before, request("/v2/models/x/predict"))
        await raw(before, request("/v2/repository/models/x/load"))
    assert new(was, counted("unrecognised", "one")) == {"ok": 1}
    assert new(passed, counted("none", "one")) == {"ok": 1}
    assert not kept.exchanges
