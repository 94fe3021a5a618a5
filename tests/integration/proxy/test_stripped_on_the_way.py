"""Metadata are stripped while there is room; without it requests pass unchanged."""

import asyncio
import gzip
import json

from aiohttp import web

from inference_store.platform.metrics import SHOWN
from inference_store.proxy.configuration import Rules

from .rest_server import DEADLINE, encode_request, send_raw, start_line

STRIPS = Rules(strip_metadata=True)
INFER = "/v2/models/m/infer"


class WaitingHandler:
    """Answers once `count` requests have arrived."""

    def __init__(self, count: int) -> None:
        self._here = asyncio.Barrier(count)
        self.bodies: list[bytes] = []
        self.headers: list[dict[str, str]] = []

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        self.bodies.append(await request.read())
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        await asyncio.wait_for(self._here.wait(), DEADLINE)
        return web.Response()


def make_body(size: int) -> bytes:
    return b'{"parameters": {"metadata": "[]"}, "id": "' + b"x" * size + b'"}'


def make_request(body: bytes, *headers: str) -> bytes:
    return encode_request("POST", INFER, body, *headers)


def count_unstripped() -> float:
    name = "inference_store_proxy_unstripped_calls_total"
    return SHOWN["proxy"].get_sample_value(name, {"why": "no_room"}) or 0


async def test_strips_metadata() -> None:
    server, large = WaitingHandler(1), b"x" * 3_000_000
    body = b'{"inputs": [], "parameters": {"metadata": "[]", "a": 1.0}, "id": "7"}'
    async with start_line(server, model=STRIPS) as line:
        await send_raw(line.port, make_request(body))
        exchange = await line.captures.wait_for_first()
        await send_raw(line.port, make_request(make_body(len(large))))
    assert exchange.request.bytes == body
    assert [json.loads(received) for received in server.bodies] == [
        {"inputs": [], "parameters": {"a": 1.0}, "id": "7"},
        {"parameters": {}, "id": large.decode()},
    ]


async def test_all_requests_share_the_room() -> None:
    server, before, size = WaitingHandler(8), count_unstripped(), 300_000
    async with start_line(server, model=STRIPS, strip_bytes=1_000_000) as line:
        request = make_request(make_body(size))
        answers = await asyncio.gather(*(send_raw(line.port, request) for _ in range(8)))
    assert all(answer.startswith(b"HTTP/1.1 200") for answer in answers)
    whole = [body for body in server.bodies if body == make_body(size)]
    others = [json.loads(body) for body in server.bodies if body != make_body(size)]
    assert all(document == {"parameters": {}, "id": "x" * size} for document in others)
    assert len(whole) >= 5
    assert count_unstripped() - before == len(whole)


async def test_without_room_bodies_pass_unchanged() -> None:
    server = WaitingHandler(1)
    body = make_body(200_000)
    chunked = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    packed = gzip.compress(body)
    async with start_line(server, model=STRIPS, strip_bytes=100) as line:
        await send_raw(line.port, make_request(chunked, "Transfer-Encoding: chunked"))
        await send_raw(line.port, make_request(packed, "Content-Encoding: gzip"))
        await send_raw(line.port, make_request(make_body(10)))
    assert server.bodies[:2] == [body, packed]
    assert server.headers[1]["content-length"] == str(len(packed))
    assert json.loads(server.bodies[2]) == {"parameters": {}, "id": "x" * 10}
