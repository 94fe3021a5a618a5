"""The caller and the model server get the same through the proxy as without it."""

import asyncio
import gzip
import json
from contextlib import suppress
from typing import Any

import pytest
from aiohttp import ClientPayloadError, ClientSession, web

from inference_store.proxy.configuration import ModelEntry
from inference_store.proxy.rest.forwarded_call import CALLER_GONE
from inference_store.proxy.rest.heads import MOST_HEAD_BYTES
from tests.servers.ports import free_port

from .rest_server import DEADLINE, FakeCaptures, proxy, send_raw, upstream

INFER = "/v2/models/m/infer"


def _encode_request(method: str, path: str, body: bytes = b"", *headers: str) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: models.example", "Connection: close", *headers]
    if body or method == "POST":
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


def _split_answer(answer: bytes) -> tuple[bytes, list[tuple[bytes, bytes]], bytes]:
    """Return the status line, the headers without those of one connection, and the body."""
    head, _, body = answer.partition(b"\r\n\r\n")
    status, *lines = head.split(b"\r\n")
    pairs = (line.split(b": ", 1) for line in lines)
    headers = sorted((name.lower(), value) for name, value in pairs)
    own = {b"connection", b"date", b"transfer-encoding", b"keep-alive", b"inference-store-id"}
    return status, [pair for pair in headers if pair[0] not in own], body


class Echo:
    """Answers with the body of the request, and records requests."""

    def __init__(self) -> None:
        self.records: list[tuple[str, str, list[tuple[str, str]], bytes]] = []

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        headers = [(name.lower(), value) for name, value in request.headers.items()]
        self.records.append((request.method, request.raw_path, sorted(headers), body))
        answer = web.Response(status=201, body=body or b"nothing")
        answer.headers.extend([("X-Two", "a"), ("x-two", "b, c"), ("X-Odd", "\u00e9 \t;")])
        return answer


@pytest.mark.parametrize(
    "request_",
    [
        _encode_request("POST", INFER, b'{"inputs": []}', "Content-Type: application/json"),
        _encode_request("POST", INFER, gzip.compress(b"{}"), "Content-Encoding: gzip"),
        _encode_request("POST", INFER, b"x" * 3_000_000),
        _encode_request("POST", INFER),
        _encode_request("GET", "/v2/health/live?a=%20b&c=d%2Fe"),
        _encode_request("GET", "/v2/models/a%2Fb//c;d=1/ready?x"),
        _encode_request("GET", "/v2/health/live?"),
        _encode_request("GET", "/v2/health/live??"),
        _encode_request("POST", f"{INFER}?", b"{}"),
        _encode_request("HEAD", "/v2"),
        _encode_request("DELETE", "/v2/x", b"body"),
        _encode_request("PROPFIND", "/v2/x", b"<a/>"),
        _encode_request(
            "POST", INFER, b"{}", "X-Two: a", "x-two: b", "Accept-Encoding: br", "Cookie: a=b"
        ),
        _encode_request("POST", INFER, b"{}", "Authorization: Bearer t", "X-Empty:", "Via: 1.1 x"),
    ],
    ids=lambda request: request[:40].decode("latin-1").replace("\r\n", " "),
)
async def test_nothing_is_changed(request_: bytes) -> None:
    echo = Echo()
    async with upstream(echo) as port, proxy(port, FakeCaptures()) as before:
        direct, through = await send_raw(port, request_), await send_raw(before, request_)
    assert _split_answer(through) == _split_answer(direct)
    without, with_it = (
        [pair for pair in record[2] if pair[0] != "connection"] for record in echo.records
    )
    assert with_it == without
    assert echo.records[0][:2] == echo.records[1][:2]
    assert echo.records[0][3] == echo.records[1][3]


async def test_headers_of_one_connection_stay_there() -> None:
    echo = Echo()
    request = _encode_request("POST", INFER, b"{}", "Connection: x-mine", "X-Mine: 1", "TE: gzip")
    async with upstream(echo) as port, proxy(port, FakeCaptures()) as before:
        await send_raw(before, request)
    assert not {"x-mine", "te"} & {name for name, _ in echo.records[0][2]}


async def test_streams_parts_in_both_directions() -> None:
    """The upstream answers the first part before the second is sent."""

    async def turns(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        async for part in request.content.iter_any():
            await answer.write(part.upper())
        return answer

    captures = FakeCaptures()
    async with upstream(turns) as port, proxy(port, captures) as before:
        reader, writer = await asyncio.open_connection("127.0.0.1", before)
        writer.write(
            f"POST {INFER} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
        )
        for part in (b"one", b"two"):
            writer.write(b"3\r\n" + part + b"\r\n")
            await asyncio.wait_for(reader.readuntil(part.upper()), DEADLINE)
        writer.write(b"0\r\n\r\n")
        await asyncio.wait_for(reader.readuntil(b"0\r\n\r\n"), DEADLINE)
        writer.close()
        exchange = await captures.wait_for_first()
    assert list(exchange.response.parts) == [b"ONE", b"TWO"]
    assert exchange.request.bytes == b"onetwo"


@pytest.mark.parametrize("status", [204, 304, 404, 422, 500, 503])
async def test_passes_every_status(status: int) -> None:
    async def answer(_: web.Request) -> web.StreamResponse:
        return web.Response(status=status, body=None if status < 400 else b'{"error": "why"}')

    request = _encode_request("POST", INFER, b"{}")
    async with upstream(answer) as port, proxy(port, captures := FakeCaptures()) as before:
        assert _split_answer(await send_raw(before, request)) == _split_answer(
            await send_raw(port, request)
        )
        assert (await captures.wait_for_first()).http_status == status


@pytest.mark.parametrize("line", ["GET /v2 HTTP/1.0", f"POST {INFER} HTTP/1.0"])
@pytest.mark.parametrize("keep", ["", "Connection: keep-alive\r\n"])
async def test_http_1_0_client_gets_no_chunks(line: str, keep: str) -> None:
    """An answer without a declared length ends with the connection."""

    async def parts(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        for part in (b"one", b"two"):
            await answer.write(part)
        return answer

    request = f"{line}\r\nHost: x\r\n{keep}Content-Length: 2\r\n\r\n{{}}".encode()
    async with upstream(parts) as port, proxy(port, FakeCaptures()) as before:
        head, _, body = (await send_raw(before, request)).partition(b"\r\n\r\n")
    assert body == b"onetwo"
    assert b"transfer-encoding" not in head.lower()
    assert b"connection: close" in head.lower()


async def test_http_1_0_client_sees_that_an_answer_breaks_off() -> None:
    async def breaks(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        await answer.write(b"half")
        assert request.transport is not None
        request.transport.abort()
        return answer

    async with upstream(breaks) as port, proxy(port, FakeCaptures()) as before:
        with pytest.raises(ConnectionResetError):
            await send_raw(before, b"GET /v2 HTTP/1.0\r\nHost: x\r\n\r\n")


async def _start_fixed_server(answer: bytes) -> tuple[asyncio.Server, int]:
    """Start a model server that sends these bytes for every request, and stays connected."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while await reader.readuntil(b"\r\n\r\n"):
                writer.write(answer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    return server, server.sockets[0].getsockname()[1]


@pytest.mark.parametrize(
    ("method", "status"),
    [("GET", "304 Not Modified"), ("GET", "204 No Content"), ("HEAD", "200 OK")],
)
@pytest.mark.parametrize("path", ["/v2", INFER])
async def test_length_without_a_body_keeps_the_connection(
    method: str, status: str, path: str
) -> None:
    answer = f"HTTP/1.1 {status}\r\nETag: 7\r\nContent-Length: 1000\r\n\r\n".encode()
    server, port = await _start_fixed_server(answer)
    async with server, proxy(port, FakeCaptures()) as before:
        reader, writer = await asyncio.open_connection("127.0.0.1", before)
        for _ in range(3):
            writer.write(f"{method} {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), DEADLINE)
            assert head.startswith(f"HTTP/1.1 {status}".encode())
            assert b"content-length: 1000" in head
        writer.close()
        await writer.wait_closed()


async def test_hands_over_the_exchange() -> None:
    captures = FakeCaptures()
    request = _encode_request("POST", f"{INFER}?a=1", b"asked", "X-Request-ID: 7", "X-Mine: \u00e9")
    async with upstream(Echo()) as port, proxy(port, captures) as before:
        await send_raw(before, request)
        exchange = await captures.wait_for_first()
    _, call, _, model = captures.exchanges[0]
    assert (exchange.method, exchange.path, exchange.query) == ("POST", INFER, "a=1")
    assert (exchange.request.bytes, exchange.response.bytes) == (b"asked", b"asked")
    assert ("x-request-id", "7") in exchange.request_headers
    assert ("x-mine", "\u00e9") in exchange.request_headers
    assert (call.protocol.name, model, exchange.http_status) == ("v2", "m", 201)
    times: list[Any] = [exchange.received_at, exchange.forwarded_at, exchange.responded_at]
    assert [*times, exchange.finished_at] == sorted([*times, exchange.finished_at])


async def test_bodies_without_room_pass_uncaptured() -> None:
    request = _encode_request("POST", INFER, b"x" * 1_000_000)
    async with upstream(Echo()) as port:
        for captures in (FakeCaptures(refuse=True), FakeCaptures(most=1000)):
            async with proxy(port, captures) as before:
                assert _split_answer(await send_raw(before, request))[2] == b"x" * 1_000_000
    exchange = await captures.wait_for_first()
    assert (exchange.request.whole, exchange.response.whole) == (True, False)
    # The beginning of an answer is kept, because it may be a stream.
    assert exchange.response.size == 1_000_000 > sum(map(len, exchange.response.parts))


async def test_strips_metadata() -> None:
    echo, captures = Echo(), FakeCaptures()
    entry = ModelEntry(strip_metadata=True)
    body = b'{"inputs": [], "parameters": {"metadata": "[]", "a": 1.0}, "id": "7"}'
    async with upstream(echo) as port, proxy(port, captures, model=entry) as before:
        await send_raw(before, _encode_request("POST", INFER, body))
        exchange = await captures.wait_for_first()
    assert json.loads(echo.records[0][3]) == {"inputs": [], "parameters": {"a": 1.0}, "id": "7"}
    assert exchange.request.bytes == body


async def test_strips_metadata_of_a_large_body() -> None:
    echo = Echo()
    large = b"x" * 3_000_000
    body = b'{"parameters": {"metadata": "[]"}, "id": "' + large + b'"}'
    entry = ModelEntry(strip_metadata=True)
    async with upstream(echo) as port, proxy(port, FakeCaptures(), model=entry) as before:
        await send_raw(before, _encode_request("POST", INFER, body))
    assert json.loads(echo.records[0][3]) == {"parameters": {}, "id": large.decode()}


async def test_unreachable_upstream_is_a_bad_gateway() -> None:
    async with proxy(free_port(), captures := FakeCaptures()) as before:
        status, _, body = _split_answer(
            await send_raw(before, _encode_request("POST", INFER, b"{}"))
        )
        exchange = await captures.wait_for_first()
    assert status.startswith(b"HTTP/1.1 502")
    assert b"the upstream one cannot be reached" in body
    assert exchange.error is not None
    assert exchange.http_status is None


async def test_silent_upstream_is_a_gateway_timeout() -> None:
    async def wait(_: web.Request) -> web.StreamResponse:
        await asyncio.sleep(DEADLINE)
        return web.Response()

    async with (
        upstream(wait) as port,
        proxy(port, captures := FakeCaptures(), read_seconds=0.2) as before,
    ):
        status, _, body = _split_answer(
            await send_raw(before, _encode_request("POST", INFER, b"{}"))
        )
        exchange = await captures.wait_for_first()
    assert status.startswith(b"HTTP/1.1 504")
    assert b"did not answer in time" in body
    assert "did not answer in time" in (exchange.error or "")


async def test_incomplete_answer_breaks_off() -> None:
    async def half(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"Content-Length": "100"})
        await answer.prepare(request)
        await answer.write(b"half")
        assert request.transport is not None
        request.transport.close()
        return answer

    async with (
        upstream(half) as port,
        proxy(port, captures := FakeCaptures()) as before,
        ClientSession() as session,
    ):
        with pytest.raises(ClientPayloadError):
            async with session.post(f"http://127.0.0.1:{before}{INFER}", data=b"{}") as answer:
                await answer.read()
        exchange = await captures.wait_for_first()
    assert exchange.http_status == 200
    assert (exchange.response.bytes, exchange.response.whole) == (b"half", False)
    assert exchange.request.whole
    assert "cannot be reached" in (exchange.error or "")


async def test_lost_caller_cancels_the_upstream() -> None:
    reached, cancelled = asyncio.Event(), asyncio.Event()

    async def slow(_: web.Request) -> web.StreamResponse:
        reached.set()
        try:
            await asyncio.sleep(DEADLINE)
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return web.Response()

    async with upstream(slow) as port, proxy(port, captures := FakeCaptures()) as before:
        _, writer = await asyncio.open_connection("127.0.0.1", before)
        writer.write(_encode_request("POST", INFER, b"{}"))
        await writer.drain()
        await asyncio.wait_for(reached.wait(), DEADLINE)
        writer.close()
        exchange = await captures.wait_for_first()
        await asyncio.wait_for(cancelled.wait(), DEADLINE)
    assert exchange.error == CALLER_GONE
    assert exchange.request.bytes == b"{}"


async def test_half_closed_caller_gets_its_answer() -> None:
    """The caller closes its half of the connection after the request (`shutdown(SHUT_WR)`)."""
    reached, may_answer = asyncio.Event(), asyncio.Event()

    async def slow(request: web.Request) -> web.StreamResponse:
        reached.set()
        await asyncio.wait_for(may_answer.wait(), DEADLINE)
        return web.Response(body=await request.read())

    async with upstream(slow) as port, proxy(port, captures := FakeCaptures()) as before:
        reader, writer = await asyncio.open_connection("127.0.0.1", before)
        writer.write(_encode_request("POST", INFER, b'{"inputs": []}'))
        writer.write_eof()
        await asyncio.wait_for(reached.wait(), DEADLINE)
        interim = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), DEADLINE)
        may_answer.set()
        answer = await asyncio.wait_for(reader.read(), DEADLINE)
        exchange = await captures.wait_for_first()
        writer.close()
    assert interim == b"HTTP/1.1 100 Continue\r\n\r\n"
    assert answer.replace(interim, b"").startswith(b"HTTP/1.1 200 OK\r\n")
    assert answer.endswith(b'\r\n\r\n{"inputs": []}')
    assert (exchange.error, exchange.http_status) == (None, 200)


@pytest.mark.parametrize("hosts", ["", "Host: a\r\nHost: a\r\n"])
async def test_a_request_without_one_host_is_refused(hosts: str) -> None:
    async def never(_: web.Request) -> web.StreamResponse:
        raise AssertionError("it was forwarded")

    async with upstream(never) as port, proxy(port, FakeCaptures()) as before:
        reader, writer = await asyncio.open_connection("127.0.0.1", before)
        writer.write(f"GET /v2/health/live HTTP/1.1\r\n{hosts}\r\n".encode())
        answer = await asyncio.wait_for(reader.read(), DEADLINE)
        writer.close()
    assert answer.startswith(b"HTTP/1.1 400 Bad Request\r\n")


async def test_incomplete_request_is_not_whole() -> None:
    async def wait(request: web.Request) -> web.StreamResponse:
        await request.read()
        return web.Response()

    async with upstream(wait) as port, proxy(port, captures := FakeCaptures()) as before:
        _, writer = await asyncio.open_connection("127.0.0.1", before)
        head = f"POST {INFER} HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n"
        writer.write(head.encode() + b"half")
        await writer.drain()
        writer.close()
        exchange = await captures.wait_for_first()
    assert (exchange.request.bytes, exchange.request.whole) == (b"half", False)
    assert exchange.error == CALLER_GONE


@pytest.mark.parametrize("target", ["*@127.0.0.1:{port}/steal", "*", "a:b@127.0.0.1:{port}/"])
async def test_rejects_targets_that_are_not_paths(target: str) -> None:
    """Anything else appended to the address of the upstream could lead to another server."""
    elsewhere = Echo()
    async with (
        upstream(elsewhere) as other,
        upstream(Echo()) as port,
        proxy(port, FakeCaptures()) as before,
    ):
        request = _encode_request("GET", target.format(port=other), b"", "Cookie: a=b")
        status, _, _ = _split_answer(await send_raw(before, request))
    assert status.startswith(b"HTTP/1.1 400")
    assert elsewhere.records == []


async def test_cuts_off_an_endless_head() -> None:
    async with upstream(Echo()) as port, proxy(port, FakeCaptures()) as before:
        head = b"GET /v2 HTTP/1.1\r\n" + b"X-Long: " + b"x" * MOST_HEAD_BYTES
        with suppress(ConnectionError):  # it closes before it has read everything
            assert await send_raw(before, head) == b""
        answer = await send_raw(before, _encode_request("GET", "/v2/health/live"))
    assert answer.startswith(b"HTTP/1.1 201")
