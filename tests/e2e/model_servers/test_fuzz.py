"""Bytes of any kind: what reaches the server, and what comes back, is what it is without the proxy.

That all of it could be captured, too, is checked when the proxies end: see conftest.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest
from aiohttp import web
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from multidict import CIMultiDict

from tests.integration.proxy.rest_server import upstream
from tests.properties import examples
from tests.upstreams.asking import HOP_BY_HOP, Asked, by_socket, connect, differences

from .conftest import Start

# Other work on the machine must not fail a test; a fixture's server is the same for all examples.
_UNHURRIED = settings(
    deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
_CODINGS = ["gzip", "deflate", "br", "identity", "gzip, gzip", "x"]
_LENGTHS = st.integers(-2, 40).map(str) | st.sampled_from(["", "x", "1e3", "9" * 40, "1 2"])
Headers = list[tuple[str, str]]
# with headers that tell of it, right or wrong
_BODIES = st.tuples(
    st.binary(max_size=200),
    st.lists(
        st.tuples(st.just("Content-Encoding"), st.sampled_from(_CODINGS))
        | st.tuples(st.just("Inference-Header-Content-Length"), _LENGTHS)
        | st.tuples(
            st.just("Content-Type"),
            st.sampled_from(["application/json", "text/event-stream", "a/b", "", ";;"]),
        ),
        unique_by=lambda header: header[0],
    ),
)
_PLAIN = st.characters(min_codepoint=0x21, max_codepoint=0x7E)
_SIGNS = st.characters(min_codepoint=0x20, max_codepoint=0x2FF, exclude_characters="\x7f")
_VALUE = st.text(_SIGNS, max_size=20).map(
    # its bytes as they are sent; HTTP strips the blanks around a value
    lambda text: (
        "".join(character for character in text if character >= " ")
        .strip()
        .encode()
        .decode("latin-1")
    )
)
_NAMES = (
    *("X-A", "x-a", "X-Request-ID", "Accept", "Cookie", "traceparent"),
    *("inference-store-metadata", "chariot-inference-parameters"),
)
_HEADERS = st.lists(st.tuples(st.sampled_from(_NAMES), _VALUE), max_size=5)
_SEGMENT = st.text(_PLAIN.filter(lambda sign: sign not in "#?"), min_size=1, max_size=8)
_ENDS = st.sampled_from(["infer", "infer_stream", "generate_stream", "versions/1/infer"])
_PATH = st.builds("/v2/models/{}/{}".format, _SEGMENT, _ENDS) | _SEGMENT.map("/{}".format)
_QUERY = st.just("") | st.text(_PLAIN.filter(lambda sign: sign != "#"), min_size=1).map(
    "?{}".format
)
_METHOD = st.sampled_from(
    ["POST", "POST", "POST", "GET", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND"]
)
_CUTS = st.lists(st.integers(1, 60), max_size=6)
_EXTENSIONS = st.sampled_from(["", ";a=b", ';c="d";e'])


def chunk(body: bytes, cuts: Sequence[int], extension: str) -> bytes:
    """A body in chunks of these sizes, and the rest in one."""
    wire = b""
    for cut in cuts:
        part, body = body[:cut], body[cut:]
        if part:
            wire += f"{len(part):x}{extension}\r\n".encode() + part + b"\r\n"
    rest = f"{len(body):X}\r\n".encode() + body + b"\r\n" if body else b""
    return wire + rest + b"0\r\n\r\n"


_ECHOED = {"content-type", "content-encoding", "inference-header-content-length"}


class Mirror:
    """Records a request, and answers with its body: in parts and with a status, if it asks so."""

    def __init__(self) -> None:
        self.received: Any = None

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        pairs = [(name.decode().lower(), value) for name, value in request.raw_headers]
        self.received = (request.method, request.raw_path, _list_passed(pairs), body)
        headers = CIMultiDict(
            (name, value.decode("utf-8", "surrogateescape"))
            for name, value in pairs
            if name in _ECHOED
        )
        status = int(request.headers.get("mirror-status", 200))
        parts = int(request.headers.get("mirror-parts", 0))
        if not parts:
            return web.Response(body=body, headers=headers, status=status)
        answer = web.StreamResponse(headers=headers, status=status)
        await answer.prepare(request)
        size = len(body) // parts + 1
        for at in range(0, len(body), size):
            await answer.write(body[at : at + size])
        await answer.write_eof()
        return answer


def _list_passed(pairs: Sequence[tuple[str, bytes]]) -> list[tuple[str, bytes]]:
    """Leave out hop-by-hop headers, and those that say that there is no body; of a body in chunks
    its length, too, which is each connection's own."""
    # 100-continue is answered by the next hop, not by the last
    left_out = {*HOP_BY_HOP, "expect"}
    if ("x-chunked", b"1") in pairs:
        left_out.add("content-length")
    return [pair for pair in pairs if pair[0] not in left_out and pair != ("content-length", b"0")]


@dataclass
class MirrorLine:
    """A mirror, and a real proxy before it."""

    mirror: Mirror
    direct: str
    proxied: str


@pytest.fixture
async def line(proxy_before: Start) -> AsyncIterator[MirrorLine]:
    async with upstream(mirror := Mirror()) as port:
        direct = f"127.0.0.1:{port}"
        protocols = ("v2", "openai", "kserve-v1", "raw")
        with proxy_before("mirror", *protocols, url=f"http://{direct}") as proxy:
            yield MirrorLine(mirror, direct, proxy.http)


@given(
    st.tuples(_METHOD, _PATH, _QUERY, _HEADERS),
    _BODIES,
    st.none() | _CUTS,
    _EXTENSIONS,
)
@settings(_UNHURRIED, max_examples=examples(400))
async def test_requests_reach_the_server_as_they_are(
    line: MirrorLine,
    head: tuple[str, str, str, Headers],
    written: tuple[bytes, Headers],
    cuts: list[int] | None,
    extension: str,
) -> None:
    (method, path, query, headers), (body, about_it) = head, written
    headers = [("Host", "models"), *headers, *about_it]
    if cuts is not None:
        headers += [("Transfer-Encoding", "chunked"), ("X-Chunked", "1")]
        body = chunk(body, cuts, extension)
    request, received = Asked(method, path + query, headers, body), []
    for address in (line.direct, line.proxied):
        line.mirror.received = None
        answer = await asyncio.to_thread(by_socket, address, request)
        received.append((answer.status, line.mirror.received))
    assert received[1] == received[0]


@given(_PATH, _BODIES, st.integers(0, 4), st.sampled_from(["200", "400", "503"]))
@settings(_UNHURRIED, max_examples=examples(200))
async def test_answers_in_any_chunks(
    line: MirrorLine, path: str, written: tuple[bytes, Headers], parts: int, status: str
) -> None:
    body, headers = written
    asked = [("mirror-parts", str(parts)), ("mirror-status", status)]
    request = Asked("POST", path, [("Host", "models"), *headers, *asked], body)
    direct, proxied = [
        await asyncio.to_thread(by_socket, address, request)
        for address in (line.direct, line.proxied)
    ]
    assert (direct.body, direct.status) == (body, int(status))
    assert differences(direct, proxied, besides={"inference-store-id"}) == []


_BROKEN = st.binary(max_size=60) | st.sampled_from(
    [
        b"POST /v2/models/m/infer HTTP/1.1\r\nContent-Length: 5\r\n\r\nab",
        b"POST /v2/models/m/infer HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"a" * 70_000 + b"\r\n\r\n",
        b"BREW /v2 HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ]
)


@given(st.lists(_BROKEN, min_size=1, max_size=3))
@settings(_UNHURRIED, max_examples=examples(100))
async def test_malformed_http_causes_no_internal_error(
    line: MirrorLine, pieces: list[bytes]
) -> None:
    answer = await asyncio.to_thread(_send, line.proxied, pieces)
    # several requests may have come of it
    statuses = [int(part[:3]) for part in answer.split(b"HTTP/1.1 ")[1:] if part[:3].isdigit()]
    assert all(status < 500 for status in statuses), answer[:500]
    request = Asked("GET", "/after", [("Host", "models")])
    assert (await asyncio.to_thread(by_socket, line.proxied, request)).status == 200


def _send(address: str, pieces: Sequence[bytes]) -> bytes:
    """Return what a server answers to these bytes, until it closes or waits for more of them."""
    answer = b""
    with connect(address) as connection, suppress(OSError):
        for piece in pieces:
            connection.sendall(piece)
        connection.shutdown(socket.SHUT_WR)
        connection.settimeout(5)
        while part := connection.recv(1 << 16):
            answer += part
    return answer
