"""The caller and the model server get the same through the proxy as without it."""

import asyncio
import gzip
from contextlib import suppress
from typing import Any

import pytest
from aiohttp import ClientPayloadError, ClientSession, web

from tests.fake_captures import FakeCaptures
from tests.servers.ports import free_port

from .rest_server import (
    DEADLINE,
    connect,
    encode_request,
    hang,
    proxy,
    send_raw,
    split_answer,
    start_line,
    upstream,
)
from .test_observed_calls import count_calls

INFER = "/v2/models/m/infer"
PREFIX = "/api/serve/serve-model-7-pred"


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
        encode_request("POST", INFER, b'{"inputs": []}', "Content-Type: application/json"),
        encode_request("POST", INFER, gzip.compress(b"{}"), "Content-Encoding: gzip"),
        encode_request("POST", INFER, b"x" * 3_000_000),
        encode_request("POST", INFER),
        encode_request("GET", "/v2/health/live?a=%20b&c=d%2Fe"),
        encode_request("GET", "/v2/models/a%2Fb//c;d=1/ready?x"),
        encode_request("GET", "/v2/health/live?"),
        encode_request("GET", "/v2/health/live??"),
        encode_request("POST", f"{INFER}?", b"{}"),
        encode_request("HEAD", "/v2"),
        encode_request("DELETE", "/v2/x", b"body"),
        encode_request("PROPFIND", "/v2/x", b"<a/>"),
        encode_request(
            "POST", INFER, b"{}", "X-Two: a", "x-two: b", "Accept-Encoding: br", "Cookie: a=b"
        ),
        encode_request("POST", INFER, b"{}", "Authorization: Bearer t", "X-Empty:", "Via: 1.1 x"),
    ],
    ids=lambda request: request[:40].decode("latin-1").replace("\r\n", " "),
)
async def test_nothing_is_changed(request_: bytes) -> None:
    async with start_line(echo := Echo()) as line:
        direct, through = await send_raw(line.direct, request_), await send_raw(line.port, request_)
    assert split_answer(through) == split_answer(direct)
    without, with_it = (
        [pair for pair in record[2] if pair[0] != "connection"] for record in echo.records
    )
    assert with_it == without
    assert echo.records[0][:2] == echo.records[1][:2]
    assert echo.records[0][3] == echo.records[1][3]


async def test_headers_of_one_connection_stay_there() -> None:
    own = ["X-Mine: 1", "TE: gzip", "Expect: 100-continue", "Upgrade: h2c", "HTTP2-Settings: AA"]
    asks = "Connection: x-mine, Upgrade, HTTP2-Settings"
    async with start_line(echo := Echo()) as line:
        await send_raw(line.port, encode_request("POST", INFER, b"{}", asks, *own))
    names = {header.partition(":")[0].lower() for header in own}
    assert not names & {name for name, _ in echo.records[0][2]}


async def test_a_path_is_recognised_however_it_is_spelt_or_counted() -> None:
    spellings = [
        "/v2/models/x/%69nfer",
        "/v2/%6dodels/x/infer",
        "/v2//models/./x/infer",
        "/v2/models/y/../x/infer",
        "/v2%2Fmodels%2Fx%2Finfer",
        PREFIX + "/v2/models/x/infer/",
        PREFIX + "/v2/models/x/%69nfer",
    ]
    async with start_line(echo := Echo()) as line:
        for path in spellings:
            answer = await send_raw(line.port, encode_request("POST", path, b"{}"))
            assert answer.startswith(b"HTTP/1.1 201"), path
    assert [path for _, path, *_ in echo.records] == spellings
    assert [exchange.path for exchange in line.captures.exchanges] == spellings
    assert {route.model for _, route in line.captures.finished} == {"x"}
    was, passed = count_calls("unrecognised", "one"), count_calls("none", "one")
    async with start_line(Echo()) as line:
        await send_raw(line.port, encode_request("POST", "/v2/models/x/predict"))
        await send_raw(line.port, encode_request("POST", "/v2/repository/models/x/load"))
    assert count_calls("unrecognised", "one") - was == {"ok": 1}
    assert count_calls("none", "one") - passed == {"ok": 1}
    assert not line.captures.finished


async def test_streams_parts_in_both_directions() -> None:
    """The upstream answers the first part before the second is sent."""

    async def turns(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        async for part in request.content.iter_any():
            await answer.write(part.upper())
        return answer

    async with start_line(turns) as line, connect(line.port) as caller:
        head = f"POST {INFER} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        caller.send(head.encode())
        for part in (b"one", b"two"):
            caller.send(b"3\r\n" + part + b"\r\n")
            await caller.read_until(part.upper())
        caller.send(b"0\r\n\r\n")
        await caller.read_until(b"0\r\n\r\n")
        exchange = await line.captures.exchange()
    assert list(exchange.response.parts) == [b"ONE", b"TWO"]
    assert exchange.request.bytes == b"onetwo"


@pytest.mark.parametrize("status", [204, 301, 304, 404, 422, 500, 503])
async def test_passes_every_status(status: int) -> None:
    async def answer(_: web.Request) -> web.StreamResponse:
        body = None if status < 400 else b'{"error": "why"}'
        return web.Response(status=status, body=body, headers={"Location": "/elsewhere"})

    request = encode_request("POST", INFER, b"{}")
    async with start_line(answer) as line:
        through, direct = await send_raw(line.port, request), await send_raw(line.direct, request)
        assert split_answer(through) == split_answer(direct)
        assert (await line.captures.exchange()).http_status == status


async def test_http_1_0_client_gets_no_chunks_and_sees_a_break() -> None:
    """An answer without a declared length ends with the connection."""

    async def parts(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        for part in (b"one", b"two"):
            await answer.write(part)
        return answer

    async with start_line(parts) as line:
        for start in ("GET /v2 HTTP/1.0", f"POST {INFER} HTTP/1.0"):
            for keep in ("", "Connection: keep-alive\r\n"):
                request = f"{start}\r\nHost: x\r\n{keep}Content-Length: 2\r\n\r\n{{}}".encode()
                head, _, body = (await send_raw(line.port, request)).partition(b"\r\n\r\n")
                assert body == b"onetwo", request
                assert b"transfer-encoding" not in head.lower(), request
                assert b"connection: close" in head.lower(), request

    async def breaks(request: web.Request) -> web.StreamResponse:
        broken = web.StreamResponse()
        await broken.prepare(request)
        await broken.write(b"half")
        assert request.transport is not None
        request.transport.abort()
        return broken

    async with start_line(breaks) as line:
        with pytest.raises(ConnectionResetError):
            await send_raw(line.port, b"GET /v2 HTTP/1.0\r\nHost: x\r\n\r\n")


@pytest.mark.parametrize(
    ("method", "status"),
    [("GET", "304 Not Modified"), ("GET", "204 No Content"), ("HEAD", "200 OK")],
)
async def test_length_without_a_body_keeps_the_connection(method: str, status: str) -> None:
    answer = f"HTTP/1.1 {status}\r\nETag: 7\r\nContent-Length: 1000\r\n\r\n".encode()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Send the same bytes for every request, and stay connected."""
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while await reader.readuntil(b"\r\n\r\n"):
                writer.write(answer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, proxy(port) as before:
        for path in ("/v2", INFER):
            async with connect(before) as caller:
                for _ in range(3):
                    caller.send(f"{method} {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
                    head = await caller.read_until()
                    assert head.startswith(f"HTTP/1.1 {status}".encode()), path
                    assert b"content-length: 1000" in head, path


async def test_hands_over_the_exchange() -> None:
    headers = ("X-Request-ID: 7", "X-Mine: \u00e9")
    async with start_line(Echo()) as line:
        await send_raw(line.port, encode_request("POST", f"{INFER}?a=1", b"asked", *headers))
        exchange = await line.captures.exchange()
        # the size of target and headers counts against the budget
        long, many = "?" + "q" * 1000, f"X-Large: {'x' * 5000}"
        await send_raw(line.port, encode_request("POST", INFER + long, b"asked", *headers, many))
    _, route = line.captures.finished[0]
    assert route.call is not None
    assert (exchange.method, exchange.path, exchange.query) == ("POST", INFER, "a=1")
    assert (exchange.request.bytes, exchange.response.bytes) == (b"asked", b"asked")
    assert ("x-request-id", "7") in exchange.request_headers
    assert ("x-mine", "\u00e9") in exchange.request_headers
    assert (route.call.protocol.name, route.model, exchange.http_status) == ("v2", "m", 201)
    times: list[Any] = [exchange.received_at, exchange.forwarded_at, exchange.responded_at]
    times += [exchange.first_part_at, exchange.finished_at]
    assert times == sorted(times)
    small, large = line.captures.heads
    assert small < 2000
    assert 5990 < large - small < 6200


async def test_bodies_without_room_or_end_are_no_whole_captures() -> None:
    request = encode_request("POST", INFER, b"x" * 1_000_000)
    for captures in (FakeCaptures(room=0), FakeCaptures(room=1_001_000)):
        async with start_line(Echo(), captures) as line:
            assert split_answer(await send_raw(line.port, request))[2] == b"x" * 1_000_000
    exchange = await captures.exchange()
    assert (exchange.request.whole, exchange.response.whole) == (True, False)
    # The beginning of an answer is kept, because it may be a stream.
    assert exchange.response.size == 1_000_000 > sum(map(len, exchange.response.parts))
    async with start_line(Echo()) as line, connect(line.port) as caller:
        head = f"POST {INFER} HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n"
        caller.send(head.encode() + b"half")
        caller.close()
        exchange = await line.captures.exchange()
    assert (exchange.request.bytes, exchange.request.whole) == (b"half", False)
    assert exchange.error == "the caller went away before it had the answer"


async def test_unreachable_upstream_is_a_bad_gateway() -> None:
    async with proxy(free_port(), captures := FakeCaptures()) as before:
        answer = await send_raw(before, encode_request("POST", INFER, b"{}"))
        exchange = await captures.exchange()
    assert answer.startswith(b"HTTP/1.1 502")
    assert b"the upstream one cannot be reached" in answer
    assert exchange.error is not None
    assert exchange.http_status is None
    async with proxy(0, url=None, grpc="127.0.0.1:1") as before:
        answer = await send_raw(before, encode_request("GET", "/v2"))
    assert answer.startswith(b"HTTP/1.1 502")
    assert b"the upstream one does not answer REST" in answer


async def test_silent_upstream_is_a_gateway_timeout() -> None:
    reached = asyncio.Event()

    async def silent(request: web.Request) -> web.StreamResponse:
        reached.set()
        return await hang(request)

    async with start_line(silent, read_seconds=0.2) as line:
        # on a busy machine the time may be up before the upstream has accepted the connection
        while not reached.is_set():
            answer = await send_raw(line.port, encode_request("POST", INFER, b"{}"))
    exchange = line.captures.exchanges[-1]
    assert answer.startswith(b"HTTP/1.1 504")
    assert b"did not answer in time" in answer
    assert "did not answer in time" in (exchange.error or "")


async def test_incomplete_answer_breaks_off() -> None:
    async def half(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"Content-Length": "100"})
        await answer.prepare(request)
        await answer.write(b"half")
        assert request.transport is not None
        request.transport.close()
        return answer

    async with start_line(half) as line, ClientSession() as session:
        with pytest.raises(ClientPayloadError):
            async with session.post(f"http://127.0.0.1:{line.port}{INFER}", data=b"{}") as answer:
                await answer.read()
        exchange = await line.captures.exchange()
    assert exchange.http_status == 200
    assert (exchange.response.bytes, exchange.response.whole) == (b"half", False)
    assert exchange.request.whole
    assert "cannot be reached" in (exchange.error or "")


async def test_lost_caller_cancels_the_upstream() -> None:
    reached, cancelled = asyncio.Event(), asyncio.Event()

    async def slow(request: web.Request) -> web.StreamResponse:
        reached.set()
        try:
            return await hang(request)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async with start_line(slow) as line, connect(line.port) as caller:
        caller.send(encode_request("POST", INFER, b"{}"))
        await asyncio.wait_for(reached.wait(), DEADLINE)
        caller.close()
        exchange = await line.captures.exchange()
        await asyncio.wait_for(cancelled.wait(), DEADLINE)
    assert exchange.error == "the caller went away before it had the answer"
    assert exchange.request.bytes == b"{}"


async def test_half_closed_caller_gets_its_answer() -> None:
    """The caller closes its half of the connection after the request (`shutdown(SHUT_WR)`)."""
    reached, may_answer = asyncio.Event(), asyncio.Event()

    async def slow(request: web.Request) -> web.StreamResponse:
        reached.set()
        await asyncio.wait_for(may_answer.wait(), DEADLINE)
        return web.Response(body=await request.read())

    async with start_line(slow) as line, connect(line.port) as caller:
        caller.send(encode_request("POST", INFER, b'{"inputs": []}'))
        caller.send_eof()
        await asyncio.wait_for(reached.wait(), DEADLINE)
        interim = await caller.read_until()
        may_answer.set()
        answer = await caller.read_all()
        exchange = await line.captures.exchange()
    assert interim == b"HTTP/1.1 100 Continue\r\n\r\n"
    assert answer.replace(interim, b"").startswith(b"HTTP/1.1 200 OK\r\n")
    assert answer.endswith(b'\r\n\r\n{"inputs": []}')
    assert (exchange.error, exchange.http_status) == (None, 200)


@pytest.mark.parametrize("target", ["*@127.0.0.1:{port}/steal", "*", "a:b@127.0.0.1:{port}/"])
async def test_rejects_targets_that_are_not_paths(target: str) -> None:
    """Anything else appended to the address of the upstream could lead to another server."""
    elsewhere = Echo()
    async with upstream(elsewhere) as other, start_line(Echo()) as line:
        request = encode_request("GET", target.format(port=other), b"", "Cookie: a=b")
        assert (await send_raw(line.port, request)).startswith(b"HTTP/1.1 400")
    assert elsewhere.records == []
