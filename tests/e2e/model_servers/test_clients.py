"""Model servers' own clients, which do not know that a proxy is there.

Over HTTP what they are answered is compared in bytes, status and headers; over gRPC as they read
it, and in bytes in test_grpc.
"""

import asyncio
import base64
import json
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import httpx
import pytest

from inference_store.proxy.capture.ids import ID_HEADER
from tests.proxy_process import Proxy
from tests.upstreams.clients import V2, Clients, tensor
from tests.upstreams.compare import differences
from tests.upstreams.huggingface import HuggingFace
from tests.upstreams.kserve import KServe, ask
from tests.upstreams.mlserver import MLServer, batch
from tests.upstreams.recording import recorded
from tests.upstreams.triton import Triton

pytestmark = pytest.mark.real_upstreams
EVERY_DATATYPE = [
    tensor("bool", "BOOL", [2], [True, False]),
    tensor("uint8", "UINT8", [1], [255]),
    tensor("uint16", "UINT16", [1], [2**16 - 1]),
    tensor("uint32", "UINT32", [1], [2**32 - 1]),
    tensor("uint64", "UINT64", [1], [2**64 - 1]),
    tensor("int8", "INT8", [2], [-128, 127]),
    tensor("int16", "INT16", [1], [-(2**15)]),
    tensor("int32", "INT32", [1], [-(2**31)]),
    tensor("int64", "INT64", [1], [-(2**63)]),
    tensor("fp16", "FP16", [1], [0.5]),
    tensor("fp32", "FP32", [1], [0.25]),
    tensor("fp64", "FP64", [1], [0.1]),
    tensor("bytes", "BYTES", [3], [b"\xff\x00", b"", b"text"]),
]


async def compare_over_http(server: Any, proxy: Proxy, asks: Callable[[str], Any]) -> Any:
    """Return the client's result. Raise AssertionError if it differs through the proxy."""
    results, answers = [], []
    for address in (server.http, proxy.http):
        async with recorded(address) as recording:
            results.append(await asyncio.to_thread(asks, recording.address))
        # some ask for several at once
        answers.append(sorted(recording.answers, key=lambda answer: answer.body))
    assert len(answers[0]) == len(answers[1]) > 0
    pairs = zip(*answers, strict=True)
    assert [differences(*pair, besides={ID_HEADER}) for pair in pairs] == [[]] * len(answers[0])
    assert results[0] == results[1]
    return results[0]


@pytest.mark.real_triton
async def test_tritonclient_over_http(
    triton: Triton, before_triton: Proxy, clients: Clients
) -> None:
    # What is neither text nor a number of JSON travels in binary alone.
    in_json = [each for each in EVERY_DATATYPE if each["datatype"] not in {"BYTES", "FP16"}]
    for binary, tensors in ((True, EVERY_DATATYPE), (False, in_json)):
        for compression in (None, "gzip", "deflate"):
            coding: Any = {"request_compression": compression, "response_compression": compression}
            asks = partial(
                clients.infer, "http", model="echo", inputs=tensors, id="e", binary=binary, **coding
            )
            result = await compare_over_http(triton, before_triton, asks)
            names = {candidate["name"] for candidate in tensors}
            assert result["outputs"].keys() == names, (binary, compression)


@pytest.mark.real_triton
def test_tritonclient_over_grpc(triton: Triton, before_triton: Proxy, clients: Clients) -> None:
    for compression in (None, "gzip"):
        options: Any = {"id": "e", "request_compression": compression, "headers": {"x-tenant": "a"}}
        compare_over_grpc(triton, before_triton, clients, "echo", EVERY_DATATYPE, **options)


def compare_over_grpc(
    server: Any, proxy: Proxy, clients: Clients, *asked: Any, fails: bool = False, **options: Any
) -> None:
    """Check that Triton's client reads the same through the proxy."""
    direct = clients.infer("grpc", server.grpc, *asked, **options)
    assert ("error" in direct) == fails, direct
    assert clients.infer("grpc", proxy.grpc, *asked, **options) == direct


@pytest.mark.real_triton
def test_tritonclient_streams(triton: Triton, before_triton: Proxy, clients: Clients) -> None:
    tensors = [tensor("text", "BYTES", [1], [b"one two three"])]
    direct = clients.stream(triton.grpc, "words", tensors)
    assert len(direct) >= 3
    assert clients.stream(before_triton.grpc, "words", tensors) == direct


@pytest.mark.real_triton
async def test_tritonclient_gets_the_error(
    triton: Triton, before_triton: Proxy, clients: Clients
) -> None:
    tensors = [tensor("x", "FP32", [1, 1], [-1])]
    asks = partial(clients.infer, "http", model="twice", inputs=tensors)
    assert "error" in await compare_over_http(triton, before_triton, asks)
    compare_over_grpc(triton, before_triton, clients, "twice", tensors, fails=True)


@pytest.mark.real_huggingface
async def test_tritonclient_has_a_text_classified(
    huggingface: HuggingFace, before_huggingface: Proxy, clients: Clients
) -> None:
    tensors = [tensor("args", "BYTES", [1], [b"a good day"])]
    # which it does not send of itself, and MLServer wants
    headers = {"Content-Type": "application/json"}
    options: Any = {"model": "sentiment", "inputs": tensors, "id": "s", "headers": headers}
    asks = partial(clients.infer, "http", binary=False, **options)
    assert "error" not in await compare_over_http(huggingface, before_huggingface, asks)
    compare_over_grpc(huggingface, before_huggingface, clients, "sentiment", tensors, id="s")


@pytest.mark.real_kserve
async def test_kserves_own_clients(kserve: KServe, before_kserve: Proxy) -> None:
    rows: Any = {"model": "sums", "rows": [[1, 2.5], [3, 4]], "request_id": "k-1"}
    protocols: tuple[Literal["v1", "v2"], ...] = ("v1", "v2")
    for protocol in protocols:
        result = await compare_over_http(kserve, before_kserve, partial(ask, protocol, **rows))
        assert result["values"] == [3.5, 7], protocol
    direct, proxied = (ask("grpc", server.grpc, **rows) for server in (kserve, before_kserve))
    assert direct["values"] == [3.5, 7]
    assert proxied == direct


async def test_mlservers_own_client(mlserver: MLServer, before_mlserver: Proxy) -> None:
    text = {"name": "args", "datatype": "BYTES", "shape": [1]}
    texts = ("a good day", "a day")
    requests = [{"id": str(at), "inputs": [text | {"data": [t]}]} for at, t in enumerate(texts)]

    def asks(address: str) -> Any:
        return sorted(batch(address, "echo", requests), key=lambda answer: str(answer["id"]))

    assert len(await compare_over_http(mlserver, before_mlserver, asks)) == 2


def test_models_are_unloaded_and_loaded_over_rest(
    mlserver: MLServer, before_mlserver: Proxy
) -> None:
    ready = f"{mlserver.url}/v2/models/echo/ready"
    models = f"{before_mlserver.url}/v2/repository/models"
    assert httpx.post(f"{models}/echo/unload", timeout=120).status_code == 200
    assert httpx.get(ready, timeout=120).status_code == 404
    assert httpx.post(f"{models}/echo/load", timeout=120).status_code == 200
    assert httpx.get(ready, timeout=120).status_code == 200


@pytest.mark.real_triton
def test_models_are_unloaded_and_loaded_over_grpc(
    triton: Triton, before_triton: Proxy, clients: Clients
) -> None:
    ready = f"{triton.url}/v2/models/blobs/ready"
    for method, status in (("Unload", 400), ("Load", 200)):
        name = f"RepositoryModel{method}"
        message = clients.encode(f"{name}Request", {"model_name": "blobs"})
        called = clients.call(before_triton.grpc, f"{V2}/{name}", message)
        assert called.code == "OK", called.details
        assert httpx.get(ready, timeout=120).status_code == status


def test_tritonclient_calls_an_omi_container(before_bridge: Proxy, clients: Clients) -> None:
    texts = [tensor("input.txt", "BYTES", [2], [b"great thanks", b"awful"])]
    over_grpc = clients.infer("grpc", before_bridge.grpc, "friendly", texts, id="o")
    over_http = clients.infer("http", before_bridge.http, "friendly", texts, id="o", binary=False)
    assert over_grpc == over_http
    assert over_grpc["id"] == "o"
    results = [
        json.loads(base64.b64decode(output)) for output in over_grpc["outputs"]["results.json"]
    ]
    listed = [result["result"]["classPredictions"][0]["class"] for result in results]
    assert listed == ["friendly", "unfriendly"]
    model = httpx.get(f"{before_bridge.url}/v2/models/friendly", timeout=120).json()
    assert [model_input["name"] for model_input in model["inputs"]] == ["input.txt"]
    refused = clients.infer("grpc", before_bridge.grpc, "friendly", [tensor("x", "FP32", [1], [1])])
    assert refused["status"] == "StatusCode.INVALID_ARGUMENT"
