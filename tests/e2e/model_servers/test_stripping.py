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
from .requests import JSON, PIXELS, WORDS, infer, post

pytestmark = pytest.mark.real_upstreams
ITEMS = [{"key": "camera", "type": "string", "value": "hall, é"}]
STRIPS = {"strip_metadata": True}
PLAIN = ("Accept-Encoding", "identity")
NUMBERS = infer("x", "INT64", [2], [1, -(2**60)], parameters={"kept": 1.0})
ASKED: dict[str, tuple[str, Any]] = {
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


def with_metadata(said: Mapping[str, Any]) -> dict[str, Any]:
    """Of the request and of each input, as a list and as a text."""
    text = json.dumps(ITEMS)
    inputs = [each | {"parameters": {"metadata": text}} for each in said["inputs"]]
    return {**said, "parameters": {**said.get("parameters", {}), "metadata": ITEMS}} | {
        "inputs": inputs
    }


def without_metadata(said: Mapping[str, Any]) -> dict[str, Any]:
    """As `with_metadata`, with the parameters that are left."""
    inputs = [each | {"parameters": {}} for each in said["inputs"]]
    return {**said, "parameters": said.get("parameters", {}), "inputs": inputs}


def plainly(path: str, said: Any) -> Asked:
    return post(path, said, PLAIN)


def packed(path: str, said: Any) -> Asked:
    body = gzip.compress(json.dumps(said).encode(), mtime=0)
    return post(path, body, JSON, PLAIN, ("Content-Encoding", "gzip"))


@pytest.mark.parametrize("write", [plainly, packed])
@pytest.mark.parametrize("name", ASKED)
async def test_mlserver_answers_as_to_one_without(
    name: str,
    write: Callable[[str, Any], Asked],
    way: str,
    mlserver: MLServer,
    stripping_mlserver: Proxy,
) -> None:
    path, said = ASKED[name]
    send = WAYS[way]
    direct = await send(mlserver.http, to_models(write(path, without_metadata(said))))
    stripped = await send(stripping_mlserver.http, to_models(write(path, with_metadata(said))))
    assert direct.status == 200
    assert differences(direct, stripped, besides={ID_HEADER}) == []


def to_models(asked: Asked) -> Asked:
    return replace(asked, headers=[("Host", "models"), *asked.headers])


async def came(proxy: Proxy, asked: Asked) -> tuple[dict[str, str], bytes]:
    """What reached the mirror: its headers, in lower case, and its body."""
    answer = await by_socket(proxy.http, asked)
    assert answer.status == 200, answer
    said = json.loads(answer.body)
    headers = {name.lower(): value for name, value in said["headers"]}
    body = base64.b64decode(said["body"])
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
    found, sent = await came(stripping_stub, post("/v2/models/m/infer", body, *headers))
    assert found["content-encoding"] == coding
    plain = gzip.decompress(sent) if coding == "gzip" else sent
    length = int(found["inference-header-content-length"])
    assert json.loads(plain[:length]) == {
        "id": "é",
        "inputs": [{**tensor, "parameters": {"binary_data_size": len(tail)}}],
    }
    assert plain[length:] == tail


async def test_chunks_are_stripped_too(stripping_stub: Proxy) -> None:
    body = json.dumps(with_metadata(NUMBERS)).encode()
    parts = (body[:20], body[20:], b"")
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts)
    asked = post("/v2/models/m/infer", chunks, JSON, ("Transfer-Encoding", "chunked"))
    _, sent = await came(stripping_stub, asked)
    assert json.loads(sent) == without_metadata(NUMBERS)


@pytest.mark.parametrize("coding", ["br", "zstd"])
async def test_what_cannot_be_read_reaches_the_server_as_it_came(
    coding: str, stripping_stub: Proxy
) -> None:
    body = b"(\xb5/\xfd" + json.dumps(with_metadata(NUMBERS)).encode()
    asked = post("/v2/models/m/infer", body, JSON, ("Content-Encoding", coding))
    headers, sent = await came(stripping_stub, asked)
    assert (sent, headers["content-encoding"]) == (body, coding)
