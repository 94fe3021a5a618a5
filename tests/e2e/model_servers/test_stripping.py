"""A model server answers a request that was stripped on the way as one that had no metadata."""

import base64
import gzip
import json
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from inference_store.proxy.capture.ids import ID_HEADER
from tests.proxy_process import Proxy
from tests.upstreams.asking import WAYS, Asked, by_socket
from tests.upstreams.compare import differences
from tests.upstreams.mlserver import MLServer
from tests.upstreams.written import Stub

from .conftest import V2, Start
from .requests import JSON, PIXELS, WORDS, make_infer_request, post

pytestmark = pytest.mark.real_upstreams
ITEMS = [{"key": "camera", "type": "string", "value": "hall, é"}]
STRIPS = {"strip_metadata": True}
PLAIN = ("Accept-Encoding", "identity")
NUMBERS = make_infer_request("x", "INT64", [2], [1, -(2**60)], parameters={"kept": 1.0})
REQUESTS: dict[str, tuple[str, Any]] = {
    "digits": ("/v2/models/digits/infer", PIXELS),
    "echo": ("/v2/models/echo/infer", NUMBERS),
    "stream": ("/v2/models/words/generate_stream", WORDS),
}


@pytest.fixture(scope="module")
def stripping_mlserver(mlserver: MLServer, proxy_before: Start) -> Iterator[Proxy]:
    where = {"url": mlserver.url, "grpc": mlserver.grpc}
    with proxy_before("mlserver", *V2, rules=STRIPS, **where) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def stripping_stub(stub: Stub, proxy_before: Start) -> Iterator[Proxy]:
    with proxy_before("stub", "v2", "chariot-v2", rules=STRIPS, url=stub.url) as proxy:
        yield proxy


def with_metadata(body: Mapping[str, Any]) -> dict[str, Any]:
    """Add metadata to the request and to each input, as a list and as a text."""
    text = json.dumps(ITEMS)
    inputs = [tensor | {"parameters": {"metadata": text}} for tensor in body["inputs"]]
    return {**body, "parameters": {**body.get("parameters", {}), "metadata": ITEMS}} | {
        "inputs": inputs
    }


def without_metadata(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the same with the parameters that `with_metadata` leaves."""
    inputs = [tensor | {"parameters": {}} for tensor in body["inputs"]]
    return {**body, "parameters": body.get("parameters", {}), "inputs": inputs}


def post_plain(path: str, body: Any) -> Asked:
    return post(path, body, PLAIN)


def post_compressed(path: str, document: Any) -> Asked:
    body = gzip.compress(json.dumps(document).encode(), mtime=0)
    return post(path, body, JSON, PLAIN, ("Content-Encoding", "gzip"))


@pytest.mark.parametrize("write", [post_plain, post_compressed])
@pytest.mark.parametrize("name", REQUESTS)
async def test_mlserver_answers_as_to_one_without(
    name: str,
    write: Callable[[str, Any], Asked],
    way: str,
    mlserver: MLServer,
    stripping_mlserver: Proxy,
) -> None:
    path, body = REQUESTS[name]
    send = WAYS[way]
    direct = await send(mlserver.http, to_models(write(path, without_metadata(body))))
    stripped = await send(stripping_mlserver.http, to_models(write(path, with_metadata(body))))
    assert direct.status == 200
    assert differences(direct, stripped, besides={ID_HEADER}) == []


def to_models(call: Asked) -> Asked:
    return replace(call, headers=[("Host", "models"), *call.headers])


async def find_received(proxy: Proxy, call: Asked) -> tuple[dict[str, str], bytes]:
    """Return the headers, in lower case, and the body that reached the mirror."""
    answer = await by_socket(proxy.http, call)
    assert answer.status == 200, answer
    mirror = json.loads(answer.body)
    headers = {name.lower(): value for name, value in mirror["headers"]}
    body = base64.b64decode(mirror["body"])
    if "transfer-encoding" not in headers:
        assert headers["content-length"] == str(len(body))
    return headers, body


@pytest.mark.parametrize("coding", ["identity", "gzip"])
async def test_the_lengths_of_a_binary_request_are_right(
    coding: str, stripping_stub: Proxy
) -> None:
    tail = struct.pack("<4f", 1, 2, 3, 4)
    tensor = {"name": "x", "shape": [4], "datatype": "FP32"}
    sized = {**tensor, "parameters": {"binary_data_size": len(tail), "metadata": ITEMS}}
    head = json.dumps({"id": "é", "inputs": [sized]}).encode()
    body = gzip.compress(head + tail) if coding == "gzip" else head + tail
    headers = ("Inference-Header-Content-Length", str(len(head))), ("Content-Encoding", coding)
    received_headers, sent = await find_received(
        stripping_stub, post("/v2/models/m/infer", body, *headers)
    )
    assert received_headers["content-encoding"] == coding
    plain = gzip.decompress(sent) if coding == "gzip" else sent
    length = int(received_headers["inference-header-content-length"])
    assert json.loads(plain[:length]) == {
        "id": "é",
        "inputs": [{**tensor, "parameters": {"binary_data_size": len(tail)}}],
    }
    assert plain[length:] == tail


async def test_chunks_are_stripped_too(stripping_stub: Proxy) -> None:
    body = json.dumps(with_metadata(NUMBERS)).encode()
    parts = (body[:20], body[20:], b"")
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts)
    request = post("/v2/models/m/infer", chunks, JSON, ("Transfer-Encoding", "chunked"))
    _, sent = await find_received(stripping_stub, request)
    assert json.loads(sent) == without_metadata(NUMBERS)


@pytest.mark.parametrize("coding", ["br", "zstd"])
async def test_an_unreadable_body_reaches_the_server_unchanged(
    coding: str, stripping_stub: Proxy
) -> None:
    body = b"(\xb5/\xfd" + json.dumps(with_metadata(NUMBERS)).encode()
    request = post("/v2/models/m/infer", body, JSON, ("Content-Encoding", coding))
    headers, sent = await find_received(stripping_stub, request)
    assert (sent, headers["content-encoding"]) == (body, coding)
