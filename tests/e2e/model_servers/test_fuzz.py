"""Bytes of any kind: what reaches the server, and what comes back, is what it is without the proxy.

That all of it could be captured, too, is checked when the proxies end: see conftest.
"""

import asyncio
import json
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.properties import examples
from tests.proxy_process import Proxy
from tests.upstreams.asking import HOP_BY_HOP, Asked, by_socket, differences
from tests.upstreams.model_servers import Stub

pytestmark = pytest.mark.real_upstreams
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


async def find_mirrored(address: str, call: Asked) -> Any:
    """Return the request that the mirror received, or its status if that is not 200.

    Names of headers are in lower case. Hop-by-hop headers, and those that say that there is no
    body, are left out; of a body in chunks its length, too, which is each connection's own.
    """
    answer = await by_socket(address, call)
    if answer.status != 200:
        return answer.status
    mirror = json.loads(answer.body)
    lower_case = [(name.lower(), value) for name, value in mirror["headers"]]
    # 100-continue is answered by the next hop, not by the last
    left_out = {*HOP_BY_HOP, "expect"}
    if ("Transfer-Encoding", "chunked") in call.headers:
        left_out.add("content-length")
    headers = [
        pair for pair in lower_case if pair[0] not in left_out and pair != ("content-length", "0")
    ]
    return mirror | {"headers": headers}


@given(
    st.tuples(_METHOD, _PATH, _QUERY, _HEADERS),
    _BODIES,
    st.none() | _CUTS,
    _EXTENSIONS,
)
@settings(_UNHURRIED, max_examples=examples(400))
def test_requests_reach_the_server_as_they_are(
    stub: Stub,
    before_stub: Proxy,
    head: tuple[str, str, str, Headers],
    written: tuple[bytes, Headers],
    cuts: list[int] | None,
    extension: str,
) -> None:
    (method, path, query, headers), (body, about_it) = head, written
    headers = [("Host", "models"), *headers, *about_it]
    if cuts is not None:
        headers, body = [*headers, ("Transfer-Encoding", "chunked")], chunk(body, cuts, extension)
    request = Asked(method, path + query, headers, body)
    direct = asyncio.run(find_mirrored(stub.address, request))
    assert asyncio.run(find_mirrored(before_stub.http, request)) == direct


@given(_PATH, _BODIES, st.integers(0, 4), st.sampled_from(["200", "400", "503"]))
@settings(_UNHURRIED, max_examples=examples(200))
def test_answers_in_any_chunks(
    stub: Stub,
    before_stub: Proxy,
    path: str,
    written: tuple[bytes, Headers],
    parts: int,
    status: str,
) -> None:
    body, headers = written
    echo = [("stub-echo", "content-type,content-encoding,inference-header-content-length")]
    echo += [("stub-echo-parts", str(parts)), ("stub-echo-status", status)]
    request = Asked("POST", path, [("Host", "models"), *headers, *echo], body)
    direct, proxied = (
        asyncio.run(by_socket(address, request)) for address in (stub.address, before_stub.http)
    )
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
def test_malformed_http_causes_no_internal_error(before_stub: Proxy, pieces: list[bytes]) -> None:
    answer = asyncio.run(_send(before_stub.http, pieces))
    # several requests may have come of it
    statuses = [int(part[:3]) for part in answer.split(b"HTTP/1.1 ")[1:] if part[:3].isdigit()]
    assert all(status < 500 for status in statuses), answer[:500]
    request = Asked("GET", "/after", [("Host", "models")])
    assert asyncio.run(by_socket(before_stub.http, request)).status == 200


async def _send(address: str, pieces: Sequence[bytes]) -> bytes:
    """Return what a server answers to these bytes, until it closes or waits for more of them."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    answer = b""
    with suppress(OSError, TimeoutError):
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        writer.write_eof()
        async with asyncio.timeout(5):
            answer = await reader.read()
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()
    return answer
