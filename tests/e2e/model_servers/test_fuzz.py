"""Bytes of any kind: what reaches the server, and what comes back, is what it is without the proxy.

That all of it could be captured, too, is checked when the proxies end: see conftest.
"""

import asyncio
import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import grpc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inference_store.grpc_messages import message
from tests.properties import examples
from tests.proxy_process import Proxy
from tests.upstreams.asking import Asked, by_socket
from tests.upstreams.written import Stub

from .conftest import Start
from .test_rest import find_mirrored

pytestmark = pytest.mark.real_upstreams
# Other work on the machine must not fail a test; a fixture's server is the same for all examples.
_UNHURRIED = settings(
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
_TENSOR = st.fixed_dictionaries(
    {"name": st.text(max_size=3), "datatype": st.sampled_from(["FP32", "BYTES", "INT8", "X"])},
    optional={
        "shape": st.lists(st.integers(-1, 2**31), max_size=3),
        "data": st.lists(st.integers() | st.text(max_size=3), max_size=3),
        "parameters": st.dictionaries(
            st.sampled_from(["binary_data_size", "metadata", "action"]),
            st.integers(-5, 2**40) | st.text(max_size=5) | st.none(),
        ),
    },
)
_DOCUMENT = st.fixed_dictionaries(
    {"inputs": st.lists(_TENSOR, max_size=3)},
    optional={"id": st.text(max_size=5), "parameters": st.dictionaries(st.text(), st.text())},
)


@st.composite
def _written(draw: st.DrawFn) -> tuple[bytes, list[tuple[str, str]]]:
    """A body, and the headers about it: a document, maybe with tensors behind it, maybe torn."""
    head = json.dumps(draw(_DOCUMENT)).encode()
    body = head + draw(st.binary(max_size=40))
    cut = draw(st.none() | st.integers(0, len(body)))
    length = draw(
        st.just(str(len(head)))
        | st.integers(-3, 400).map(str)
        | st.sampled_from(["", "x", "1e3", "0x10", "9" * 40, "1 2"])
    )
    return body[:cut], [("Inference-Header-Content-Length", length)]


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
_ENCODING = st.sampled_from(["gzip", "deflate", "br", "identity", "gzip, gzip", "x"])
_HEADERS = st.lists(
    st.tuples(st.sampled_from(["X-A", "x-a", "X-Request-ID", "Accept", "Cookie"]), _VALUE)
    | st.tuples(st.just("Content-Encoding"), _ENCODING)
    | st.tuples(st.sampled_from(["inference-store-metadata", "traceparent"]), _VALUE)
    | st.tuples(st.just("chariot-inference-parameters"), _VALUE)
    | st.tuples(st.just("Content-Type"), st.sampled_from(["application/json", "a/b", "", ";;"])),
    max_size=5,
)
_SEGMENT = st.text(_PLAIN.filter(lambda sign: sign not in "#?"), min_size=1, max_size=8)
_PATH = st.builds("/v2/models/{}/{}".format, _SEGMENT, st.sampled_from(["infer", "generate"])) | (
    _SEGMENT.map("/{}".format)
)
_QUERY = st.just("") | st.text(_PLAIN.filter(lambda sign: sign != "#"), min_size=1).map(
    "?{}".format
)
_METHOD = st.sampled_from(
    ["POST", "POST", "POST", "GET", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND"]
)


@given(_METHOD, _PATH, _QUERY, _HEADERS, _written() | st.binary().map(lambda body: (body, [])))
@settings(_UNHURRIED, max_examples=examples(200))
def test_requests_reach_the_server_as_they_are(
    stub: Stub,
    before_stub: Proxy,
    method: str,
    path: str,
    query: str,
    headers: list[tuple[str, str]],
    written: tuple[bytes, list[tuple[str, str]]],
) -> None:
    body, about_it = written
    request = Asked(method, path + query, [("Host", "models"), *headers, *about_it], body)
    direct = asyncio.run(find_mirrored("socket", stub.address, request))
    assert asyncio.run(find_mirrored("socket", before_stub.http, request)) == direct


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
    """Return all that a server answers to these bytes."""
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


class _Mirror(grpc.GenericRpcHandler):
    """Every message comes back, on every method, and so does the metadata."""

    def service(self, _: Any) -> Any:
        return grpc.stream_stream_rpc_method_handler(self._answer)

    @staticmethod
    def _answer(requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        metadata = [pair for pair in context.invocation_metadata() if pair[0].startswith("x-")]
        context.set_trailing_metadata(metadata)
        yield from requests


@pytest.fixture(scope="module")
def before_mirror(proxy_before: Start) -> Iterator[Proxy]:
    server = grpc.server(ThreadPoolExecutor(4), handlers=[_Mirror()])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        with proxy_before(
            "mirror", "v2-grpc", "omi", "raw-grpc", grpc=f"127.0.0.1:{port}"
        ) as opened:
            yield opened
    finally:
        server.stop(0).wait()


@pytest.fixture(scope="module")
def channel(before_mirror: Proxy) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(before_mirror.grpc) as opened:
        yield opened


_REQUEST = message("inference.ModelInferRequest")(
    model_name="m",
    id="1",
    inputs=[{"name": "x", "datatype": "BYTES", "shape": [2]}],
    raw_input_contents=[b"\x01\x00\x00\x00a\x01\x00\x00\x00b"],
).SerializeToString()
_RUN = message("RunRequest")(inputs=[{"input": {"a": b"b"}}], explain=True).SerializeToString()


@st.composite
def _torn(draw: st.DrawFn) -> bytes:
    """A message with bytes changed, left out, and added."""
    result = bytearray(draw(st.sampled_from([_REQUEST, _RUN])))
    for at in draw(st.lists(st.integers(0, len(result) - 1), max_size=4)):
        result[at] = draw(st.integers(0, 255))
    return bytes(result[: draw(st.none() | st.integers(0, len(result)))]) + draw(
        st.binary(max_size=9)
    )


_METHODS = {
    "/inference.GRPCInferenceService/ModelInfer": 1,
    "/ModzyModel/Run": 1,
    "/inference.GRPCInferenceService/ModelStreamInfer": 3,
    "/other.Service/Method": 3,
}
_PAIRS = st.lists(
    st.tuples(st.just("x-text"), st.text(_PLAIN, max_size=9))
    | st.tuples(st.just("x-b-bin"), st.binary(max_size=9)),
    max_size=3,
)


@given(
    st.sampled_from(list(_METHODS)),
    st.lists(_torn() | st.binary(max_size=50), min_size=1, max_size=3),
    _PAIRS,
)
@settings(_UNHURRIED, max_examples=examples(300))
def test_messages_reach_the_server_as_they_are(
    channel: grpc.Channel, method: str, messages: list[bytes], metadata: list[tuple[str, Any]]
) -> None:
    sent = messages[: _METHODS[method]]
    ask: grpc.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(method)
    call = ask(iter(sent), metadata=tuple(metadata), timeout=120)
    assert list(call) == sent
    assert call.code() is grpc.StatusCode.OK
    came = [pair for pair in call.trailing_metadata() if pair[0].startswith("x-")]
    assert sorted(map(repr, map(tuple, came))) == sorted(map(repr, metadata))


@given(st.lists(st.binary(max_size=60), min_size=1, max_size=3))
@settings(_UNHURRIED, max_examples=examples(50))
def test_malformed_http2_causes_no_internal_error(
    before_mirror: Proxy, channel: grpc.Channel, pieces: list[bytes]
) -> None:
    asyncio.run(_send(before_mirror.grpc, [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", *pieces]))
    ask: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary("/other.Service/Method")
    assert ask(b"after", timeout=120) == b"after"
