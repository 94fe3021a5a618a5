"""What a caller gets and the model server sees through the proxy is what they have without it."""

import asyncio
import gzip
import json
from contextlib import suppress
from typing import Any

import pytest
from aiohttp import ClientPayloadError, ClientSession, web

from inference_store.proxy.configuration import ModelEntry
from inference_store.proxy.rest.heads import MOST_HEAD_BYTES
from inference_store.proxy.rest.passing import CALLER_GONE

from .rest_server import DEADLINE, Kept, proxy, raw, upstream

INFER = "/v2/models/m/infer"


def _request(method: str, path: str, body: bytes = b"", *headers: str) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: models.example", "Connection: close", *headers]
    if body or method == "POST":
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


def _parts(answer: bytes) -> tuple[bytes, list[tuple[bytes, bytes]], bytes]:
    """Status line, headers in lower case without those of one connection, body."""
    head, _, body = answer.partition(b"\r\n\r\n")
    status, *lines = head.split(b"\r\n")
    pairs = (line.split(b": ", 1) for line in lines)
    headers = sorted((name.lower(), value) for name, value in pairs)
    own = {b"connection", b"date", b"transfer-encoding", b"keep-alive", b"inference-store-id"}
    return status, [pair for pair in headers if pair[0] not in own], body


class Echo:
    """Answers what it was asked, and remembers it."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str, list[tuple[str, str]], bytes]] = []

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        headers = [(name.lower(), value) for name, value in request.headers.items()]
        self.seen.append((request.method, request.raw_path, sorted(headers), body))
        answer = web.Response(status=201, body=body or b"nothing")
        answer.headers.extend([("X-Two", "a"), ("x-two", "b, c"), ("X-Odd", "\u00e9 \t;")])
        return answer


@pytest.mark.parametrize(
    "request_",
    [
        _request("POST", INFER, b'{"inputs": []}', "Content-Type: application/json"),
        _request("POST", INFER, gzip.compress(b"{}"), "Content-Encoding: gzip"),
        _request("POST", INFER, b"x" * 3_000_000),
        _request("POST", INFER),
        _request("GET", "/v2/health/live?a=%20b&c=d%2Fe"),
        _request("GET", "/v2/models/a%2Fb//c;d=1/ready?x"),
        _request("GET", "/v2/health/live?"),
        _request("GET", "/v2/health/live??"),
        _request("POST", f"{INFER}?", b"{}"),
        _request("HEAD", "/v2"),
        _request("DELETE", "/v2/x", b"body"),
        _request("PROPFIND", "/v2/x", b"<a/>"),
        _request(
            "POST", INFER, b"{}", "X-Two: a", "x-two: b", "Accept-Encoding: br", "Cookie: a=b"
        ),
        _request("POST", INFER, b"{}", "Authorization: Bearer t", "X-Empty:", "Via: 1.1 x"),
    ],
    ids=lambda request: request[:40].decode("latin-1").replace("\r\n", " "),
)
async def test_nothing_is_changed(request_: bytes) -> None:
    echo = Echo()
    async with upstream(echo) as port, proxy(port, Kept()) as before:
        direct, through = await raw(port, request_), await raw(before, request_)
    assert _parts(through) == _parts(direct)
    without, with_it = ([pair for pair in seen[2] if pair[0] != "connection"] for seen in echo.seen)
    assert with_it == without
    assert echo.seen[0][:2] == echo.seen[1][:2]
    assert echo.seen[0][3] == echo.seen[1][3]


async def test_headers_of_one_connection_stay_there() -> None:
    echo = Echo()
    request = _request("POST", INFER, b"{}", "Connection: x-mine", "X-Mine: 1", "TE: gzip")
    async with upstream(echo) as port, proxy(port, Kept()) as before:
        await raw(before, request)
    assert not {"x-mine", "te"} & {name for name, _ in echo.seen[0][2]}


async def test_parts_go_on_as_they_come_both_ways() -> None:
    """The upstream answers the first part before the second is sent."""

    async def turns(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        async for part in request.content.iter_any():
            await answer.write(part.upper())
        return answer

    kept = Kept()
    async with upstream(turns) as port, proxy(port, kept) as before:
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
        exchange = await kept.first()
    assert list(exchange.response.parts) == [b"ONE", b"TWO"]
    assert exchange.request.bytes == b"onetwo"


@pytest.mark.parametrize("status", [204, 304, 404, 422, 500, 503])
async def test_every_status_comes_back(status: int) -> None:
    async def answer(_: web.Request) -> web.StreamResponse:
        return web.Response(status=status, body=None if status < 400 else b'{"error": "why"}')

    request = _request("POST", INFER, b"{}")
    async with upstream(answer) as port, proxy(port, kept := Kept()) as before:
        assert _parts(await raw(before, request)) == _parts(await raw(port, request))
        assert (await kept.first()).http_status == status


@pytest.mark.parametrize("line", ["GET /v2 HTTP/1.0", f"POST {INFER} HTTP/1.0"])
@pytest.mark.parametrize("keep", ["", "Connection: keep-alive\r\n"])
async def test_a_client_of_http_1_0_gets_no_chunks(line: str, keep: str) -> None:
    """The answer of no declared length ends with the connection."""

    async def parts(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        for part in (b"one", b"two"):
            await answer.write(part)
        return answer

    request = f"{line}\r\nHost: x\r\n{keep}Content-Length: 2\r\n\r\n{{}}".encode()
    async with upstream(parts) as port, proxy(port, Kept()) as before:
        head, _, body = (await raw(before, request)).partition(b"\r\n\r\n")
    assert body == b"onetwo"
    assert b"transfer-encoding" not in head.lower()
    assert b"connection: close" in head.lower()


async def test_a_client_of_http_1_0_is_told_that_an_answer_breaks_off() -> None:
    async def breaks(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        await answer.write(b"half")
        assert request.transport is not None
        request.transport.abort()
        return answer

    async with upstream(breaks) as port, proxy(port, Kept()) as before:
        with pytest.raises(ConnectionResetError):
            await raw(before, b"GET /v2 HTTP/1.0\r\nHost: x\r\n\r\n")


async def _fixed(answer: bytes) -> tuple[asyncio.Server, int]:
    """A model server that answers these bytes to every request, and stays connected."""

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
async def test_a_length_without_a_body_leaves_the_connection_as_it_is(
    method: str, status: str, path: str
) -> None:
    answer = f"HTTP/1.1 {status}\r\nETag: 7\r\nContent-Length: 1000\r\n\r\n".encode()
    server, port = await _fixed(answer)
    async with server, proxy(port, Kept()) as before:
        reader, writer = await asyncio.open_connection("127.0.0.1", before)
        for _ in range(3):
            writer.write(f"{method} {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), DEADLINE)
            assert head.startswith(f"HTTP/1.1 {status}".encode())
            assert b"content-length: 1000" in head
        writer.close()
        await writer.wait_closed()


async def test_what_is_handed_over() -> None:
    kept = Kept()
    request = _request("POST", f"{INFER}?a=1", b"asked", "X-Request-ID: 7", "X-Mine: \u00e9")
    async with upstream(Echo()) as port, proxy(port, kept) as before:
        await raw(before, request)
        exchange = await kept.first()
    _, call, _, model = kept.exchanges[0]
    assert (exchange.method, exchange.path, exchange.query) == ("POST", INFER, "a=1")
    assert (exchange.request.bytes, exchange.response.bytes) == (b"asked", b"asked")
    assert ("x-request-id", "7") in exchange.request_headers
    assert ("x-mine", "\u00e9") in exchange.request_headers
    assert (call.protocol.name, model, exchange.http_status) == ("v2", "m", 201)
    times: list[Any] = [exchange.received_at, exchange.forwarded_at, exchange.responded_at]
    assert [*times, exchange.finished_at] == sorted([*times, exchange.finished_at])


async def test_what_has_no_room_passes_all_the_same() -> None:
    request = _request("POST", INFER, b"x" * 1_000_000)
    async with upstream(Echo()) as port:
        for kept in (Kept(refuse=True), Kept(most=1000)):
            async with proxy(port, kept) as before:
                assert _parts(await raw(before, request))[2] == b"x" * 1_000_000
    exchange = await kept.first()
    assert (exchange.request.whole, exchange.response.whole) == (True, False)
    # of an answer the beginning stays, for it may be a stream
    assert exchange.response.size == 1_000_000 > sum(map(len, exchange.response.parts))


async def test_metadata_is_taken_out_on_the_way() -> None:
    echo, kept = Echo(), Kept()
    entry = ModelEntry(strip_metadata=True)
    asked = b'{"inputs": [], "parameters": {"metadata": "[]", "a": 1.0}, "id": "7"}'
    async with upstream(echo) as port, proxy(port, kept, model=entry) as before:
        await raw(before, _request("POST", INFER, asked))
        exchange = await kept.first()
    assert json.loads(echo.seen[0][3]) == {"inputs": [], "parameters": {"a": 1.0}, "id": "7"}
    assert exchange.request.bytes == asked


async def test_metadata_are_taken_out_of_a_large_body() -> None:
    echo = Echo()
    large = b"x" * 3_000_000
    asked = b'{"parameters": {"metadata": "[]"}, "id": "' + large + b'"}'
    entry = ModelEntry(strip_metadata=True)
    async with upstream(echo) as port, proxy(port, Kept(), model=entry) as before:
        await raw(before, _request("POST", INFER, asked))
    assert json.loads(echo.seen[0][3]) == {"parameters": {}, "id": large.decode()}


async def test_nobody_there_is_said() -> None:
    async with upstream(Echo()) as port:
        pass
    async with proxy(port, kept := Kept()) as before:
        status, _, body = _parts(await raw(before, _request("POST", INFER, b"{}")))
        exchange = await kept.first()
    assert status.startswith(b"HTTP/1.1 502")
    assert b"the upstream one cannot be reached" in body
    assert exchange.error is not None
    assert exchange.http_status is None


async def test_silence_is_said() -> None:
    async def wait(_: web.Request) -> web.StreamResponse:
        await asyncio.sleep(DEADLINE)
        return web.Response()

    async with upstream(wait) as port, proxy(port, kept := Kept(), read_seconds=0.2) as before:
        status, _, body = _parts(await raw(before, _request("POST", INFER, b"{}")))
        exchange = await kept.first()
    assert status.startswith(b"HTTP/1.1 504")
    assert b"did not answer in time" in body
    assert "did not answer in time" in (exchange.error or "")


async def test_an_answer_that_breaks_off_breaks_off() -> None:
    async def half(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"Content-Length": "100"})
        await answer.prepare(request)
        await answer.write(b"half")
        assert request.transport is not None
        request.transport.close()
        return answer

    async with (
        upstream(half) as port,
        proxy(port, kept := Kept()) as before,
        ClientSession() as one,
    ):
        with pytest.raises(ClientPayloadError):
            async with one.post(f"http://127.0.0.1:{before}{INFER}", data=b"{}") as answer:
                await answer.read()
        exchange = await kept.first()
    assert exchange.http_status == 200
    assert (exchange.response.bytes, exchange.response.whole) == (b"half", False)
    assert exchange.request.whole
    assert "cannot be reached" in (exchange.error or "")


async def test_a_caller_that_leaves_lets_the_upstream_go() -> None:
    asked, left = asyncio.Event(), asyncio.Event()

    async def slow(_: web.Request) -> web.StreamResponse:
        asked.set()
        try:
            await asyncio.sleep(DEADLINE)
        except asyncio.CancelledError:
            left.set()
            raise
        return web.Response()

    async with upstream(slow) as port, proxy(port, kept := Kept()) as before:
        _, writer = await asyncio.open_connection("127.0.0.1", before)
        writer.write(_request("POST", INFER, b"{}"))
        await writer.drain()
        await asyncio.wait_for(asked.wait(), DEADLINE)
        writer.close()
        exchange = await kept.first()
        await asyncio.wait_for(left.wait(), DEADLINE)
    assert exchange.error == CALLER_GONE
    assert exchange.request.bytes == b"{}"


async def test_a_caller_that_only_reads_on_has_its_answer() -> None:
    """It closes its half of the connection after the request (`shutdown(SHUT_WR)`)."""
    asked, may_answer = asyncio.Event(), asyncio.Event()

    async def slow(request: web.Request) -> web.StreamResponse:
        asked.set()
        await asyncio.wait_for(may_answer.wait(), DEADLINE)
        return web.Response(body=await request.read())

    async with upstream(slow) as port, proxy(port, kept := Kept()) as before:
        reader, writer = await asyncio.open_connection("127.0.0.1", before)
        writer.write(_request("POST", INFER, b'{"inputs": []}'))
        writer.write_eof()
        await asyncio.wait_for(asked.wait(), DEADLINE)
        interim = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), DEADLINE)
        may_answer.set()
        answer = await asyncio.wait_for(reader.read(), DEADLINE)
        exchange = await kept.first()
        writer.close()
    assert interim == b"HTTP/1.1 100 Continue\r\n\r\n"
    assert answer.replace(interim, b"").startswith(b"HTTP/1.1 200 OK\r\n")
    assert answer.endswith(b'\r\n\r\n{"inputs": []}')
    assert (exchange.error, exchange.http_status) == (None, 200)


@pytest.mark.parametrize("hosts", ["", "Host: a\r\nHost: a\r\n"])
async def test_a_request_without_one_host_is_refused(hosts: str) -> None:
    async def never(_: web.Request) -> web.StreamResponse:
        raise AssertionError("it was forwarded")

    async with upstream(never) as port, proxy(port, Kept()) as before:
        reader, writer = await asyncio.open_connection("127.0.0.1", before)
        writer.write(f"GET /v2/health/live HTTP/1.1\r\n{hosts}\r\n".encode())
        answer = await asyncio.wait_for(reader.read(), DEADLINE)
        writer.close()
    assert answer.startswith(b"HTTP/1.1 400 Bad Request\r\n")


async def test_a_request_that_breaks_off_is_not_whole() -> None:
    async def wait(request: web.Request) -> web.StreamResponse:
        await request.read()
        return web.Response()

    async with upstream(wait) as port, proxy(port, kept := Kept()) as before:
        _, writer = await asyncio.open_connection("127.0.0.1", before)
        head = f"POST {INFER} HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n"
        writer.write(head.encode() + b"half")
        await writer.drain()
        writer.close()
        exchange = await kept.first()
    assert (exchange.request.bytes, exchange.request.whole) == (b"half", False)
    assert exchange.error == CALLER_GONE


@pytest.mark.parametrize("target", ["*@127.0.0.1:{port}/steal", "*", "a:b@127.0.0.1:{port}/"])
async def test_only_a_path_is_passed_on(target: str) -> None:
    """Behind the upstream's address anything else could lead to another server."""
    elsewhere = Echo()
    async with (
        upstream(elsewhere) as other,
        upstream(Echo()) as port,
        proxy(port, Kept()) as before,
    ):
        request = _request("GET", target.format(port=other), b"", "Cookie: a=b")
        status, _, _ = _parts(await raw(before, request))
    assert status.startswith(b"HTTP/1.1 400")
    assert elsewhere.seen == []


async def test_a_head_that_does_not_end_is_cut_off() -> None:
    async with upstream(Echo()) as port, proxy(port, Kept()) as before:
        head = b"GET /v2 HTTP/1.1\r\n" + b"X-Long: " + b"x" * MOST_HEAD_BYTES
        with suppress(ConnectionError):  # closed before all of it was read
            assert await raw(before, head) == b""
        answer = await raw(before, _request("GET", "/v2/health/live"))
    assert answer.startswith(b"HTTP/1.1 201")
