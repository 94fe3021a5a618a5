"""Answers over REST are the same with the proxy and without it."""

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from tests.proxy_process import Proxy
from tests.upstreams import model_servers
from tests.upstreams.asking import Asked, by_socket, differences

from . import requests
from .conftest import Start
from .requests import PIXELS, WORDS, compress, get, make_infer_request, post

pytestmark = pytest.mark.real_upstreams
# Answers differ in it only, and only if they are captured.
OURS = {"inference-store-id"}
PLAIN = ("Accept-Encoding", "identity")
NUMBERS = make_infer_request("x", "INT64", [2], [1, -(2**60)], parameters={"kept": 1.0})
STRIPPED = {
    "/v2/models/digits/infer": PIXELS,
    "/v2/models/echo/infer": NUMBERS,
    "/v2/models/words/generate_stream": WORDS,
}


async def find_differences(
    direct: str,
    proxy: Proxy,
    sent_requests: Mapping[str, Asked],
    refused: Collection[str] = requests.REFUSED,
) -> Any:
    """Return the differences by the name of the request. Hosts are fixed: redirects repeat them."""
    result = {}
    for name, request in sent_requests.items():
        first = await by_socket(direct, to_models(request))
        second = await by_socket(proxy.http, to_models(request))
        result[name] = differences(first, second, besides=OURS)
        if (first.status >= 400) != (name in refused):
            result[name].append(f"the server itself answers {first.status}")
    return {name: sentences for name, sentences in result.items() if sentences}


def to_models(call: Asked) -> Asked:
    return replace(call, headers=[("Host", "models"), *call.headers])


async def test_mlserver(mlserver: model_servers.MLServer, before_mlserver: Proxy) -> None:
    assert await find_differences(mlserver.http, before_mlserver, requests.MLSERVER) == {}


@pytest.mark.real_huggingface
async def test_huggingface(
    huggingface: model_servers.HuggingFace, before_huggingface: Proxy
) -> None:
    sent_requests = requests.HUGGINGFACE
    assert await find_differences(huggingface.http, before_huggingface, sent_requests) == {}


@pytest.mark.real_triton
async def test_triton(triton: model_servers.Triton, before_triton: Proxy) -> None:
    assert await find_differences(triton.http, before_triton, requests.TRITON) == {}


@pytest.mark.real_kserve
async def test_kserve(kserve: model_servers.KServe, before_kserve: Proxy) -> None:
    refused = requests.REFUSED | {"index"}
    assert await find_differences(kserve.http, before_kserve, requests.KSERVE, refused) == {}


async def test_chariot(chariot_engine: model_servers.ChariotEngine, before_chariot: Proxy) -> None:
    direct = chariot_engine.address
    assert await find_differences(direct, before_chariot, requests.CHARIOT) == {}


async def test_stub(stub: model_servers.Stub, before_stub: Proxy) -> None:
    refused = [name for name in requests.STUB if name.startswith(("status 4", "status 5"))]
    assert await find_differences(stub.address, before_stub, requests.STUB, refused) == {}


async def test_answers_that_an_upstream_has_no_rest(
    omi_container: model_servers.OmiContainer, before_omi: Proxy
) -> None:
    assert omi_container.address
    answer = await by_socket(before_omi.http, get("/v2"))
    error = {"error": "the upstream omi answers gRPC alone"}
    assert (answer.status, json.loads(answer.body)) == (502, error)


@pytest.fixture(scope="module")
def stripping_mlserver(mlserver: model_servers.MLServer, proxy_before: Start) -> Iterator[Proxy]:
    rules = {"strip_metadata": True}
    with proxy_before("mlserver", "v2", rules=rules, url=mlserver.url) as proxy:
        yield proxy


def with_metadata(body: Mapping[str, Any]) -> dict[str, Any]:
    """Add metadata to the request and to each input, as a list and as a text."""
    items = [{"key": "camera", "type": "string", "value": "hall, é"}]
    inputs = [tensor | {"parameters": {"metadata": json.dumps(items)}} for tensor in body["inputs"]]
    parameters = {**body.get("parameters", {}), "metadata": items}
    return {**body, "parameters": parameters, "inputs": inputs}


async def test_mlserver_answers_a_stripped_request_as_one_without_metadata(
    mlserver: model_servers.MLServer, stripping_mlserver: Proxy
) -> None:
    for path, body in STRIPPED.items():
        without = {**body, "parameters": body.get("parameters", {})}
        without["inputs"] = [tensor | {"parameters": {}} for tensor in body["inputs"]]
        for write in (post, compress):
            plain = to_models(write(path, without, PLAIN))
            direct = await by_socket(mlserver.http, plain)
            call = to_models(write(path, with_metadata(body), PLAIN))
            stripped = await by_socket(stripping_mlserver.http, call)
            assert direct.status == 200, (path, write)
            assert differences(direct, stripped, besides=OURS) == [], (path, write)
