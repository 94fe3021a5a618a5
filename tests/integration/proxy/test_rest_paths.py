"""A call is captured however its path is spelt, and its path is passed on unchanged."""

import pytest
from aiohttp import web

from .rest_server import FakeCaptures, proxy, send_raw, upstream
from .test_observed_calls import count_calls, subtract_counts

PREFIX = "/api/serve/serve-model-7-pred"


def encode_request(path: str) -> bytes:
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

    async with upstream(answer) as port, proxy(port, captures := FakeCaptures()) as before:
        assert (await send_raw(before, encode_request(path))).startswith(b"HTTP/1.1 200")
        exchange = await captures.wait_for_first()
    assert paths == [path] == [exchange.path]
    _, call, _, model = captures.exchanges[0]
    assert (call.model, model) == ("x", "x")


async def test_what_may_be_an_inference_and_is_not_recognised_is_counted() -> None:
    async def answer(_: web.Request) -> web.StreamResponse:
        return web.json_response({})

    was, passed = count_calls("unrecognised", "one"), count_calls("none", "one")
    async with upstream(answer) as port, proxy(port, captures := FakeCaptures()) as before:
        await send_raw(before, encode_request("/v2/models/x/predict"))
        await send_raw(before, encode_request("/v2/repository/models/x/load"))
    assert subtract_counts(was, count_calls("unrecognised", "one")) == {"ok": 1}
    assert subtract_counts(passed, count_calls("none", "one")) == {"ok": 1}
    assert not captures.exchanges
