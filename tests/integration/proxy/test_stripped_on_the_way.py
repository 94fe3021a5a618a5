"""Metadata are taken out on the way while there is room; without it requests go on as they came."""

import asyncio
import gzip
import json

from aiohttp import web

from inference_store.platform.metrics import SHOWN
from inference_store.proxy.configuration import ModelEntry

from .rest_server import DEADLINE, Kept, proxy, raw, upstream

STRIPS = ModelEntry(strip_metadata=True)
INFER = "/v2/models/m/infer"


class Holding:
    """Answers once so many requests are here."""

    def __init__(self, count: int) -> None:
        self._here = asyncio.Barrier(count)
        self.bodies: list[bytes] = []
        self.headers: list[dict[str, str]] = []

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        self.bodies.append(await request.read())
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        await asyncio.wait_for(self._here.wait(), DEADLINE)
        return web.Response()


def asked(size: int) -> bytes:
    return b'{"parameters": {"metadata": "[]"}, "id": "' + b"x" * size + b'"}'


def request(body: bytes, *headers: str) -> bytes:
    lines = [f"POST {INFER} HTTP/1.1", "Host: a", "Connection: close", *headers]
    if not any(each.startswith("Transfer") for each in headers):
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + body


def unstripped() -> float:
    name = "inference_store_proxy_unstripped_calls_total"
    return SHOWN["proxy"].get_sample_value(name, {"why": "no_room"}) or 0


async def test_room_is_for_all_requests_together() -> None:
    server, before, size = Holding(8), unstripped(), 300_000
    async with (
        upstream(server) as port,
        proxy(port, Kept(), model=STRIPS, strip_bytes=1_000_000) as through,
    ):
        calls = [asyncio.create_task(raw(through, request(asked(size)))) for _ in range(8)]
        answers = await asyncio.gather(*calls)
    assert all(each.startswith(b"HTTP/1.1 200") for each in answers)
    whole = [each for each in server.bodies if each == asked(size)]
    others = [json.loads(each) for each in server.bodies if each != asked(size)]
    assert all(each == {"parameters": {}, "id": "x" * size} for each in others)
    assert len(whole) >= 5
    assert unstripped() - before == len(whole)


async def test_without_room_each_byte_goes_on_in_chunks_too() -> None:
    server = Holding(1)
    body = asked(200_000)
    chunked = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    packed = gzip.compress(body)
    async with (
        upstream(server) as port,
        proxy(port, Kept(), model=STRIPS, strip_bytes=100) as through,
    ):
        await raw(through, request(chunked, "Transfer-Encoding: chunked"))
        await raw(through, request(packed, "Content-Encoding: gzip"))
        await raw(through, request(asked(10)))
    assert server.bodies[:2] == [body, packed]
    assert server.headers[1]["content-length"] == str(len(packed))
    assert json.loads(server.bodies[2]) == {"parameters": {}, "id": "x" * 10}
