"""Answers over REST are the same with the proxy and without it."""

import json
import re
from collections.abc import Collection, Mapping
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from inference_store.proxy.capture.ids import ID_HEADER
from tests.proxy_process import Proxy
from tests.upstreams.asking import WAYS, Asked, arrivals, by_half_closed, by_socket, read_answer
from tests.upstreams.compare import HOP_BY_HOP, differences
from tests.upstreams.gate import Gate
from tests.upstreams.huggingface import HuggingFace
from tests.upstreams.kserve import KServe
from tests.upstreams.mlserver import MLServer
from tests.upstreams.triton import Triton
from tests.upstreams.written import ChariotEngine, OmiContainer, Stub

from . import requests
from .requests import get, post

pytestmark = pytest.mark.real_upstreams
# Answers differ in it only, and only if they are captured.
OURS = {ID_HEADER}
CLOSE = ("Connection", "close")


async def find_differences(
    way: str,
    direct: str,
    proxy: Proxy,
    sent_requests: Mapping[str, Asked],
    refused: Collection[str] = requests.REFUSED,
) -> Any:
    """Return the differences by the name of the request. Hosts are fixed: redirects repeat them."""
    send, result = WAYS[way], {}
    for name, request in sent_requests.items():
        first, second = (
            await send(direct, to_models(request)),
            await send(proxy.http, to_models(request)),
        )
        result[name] = differences(first, second, besides=OURS)
        if (first.status >= 400) != (name in refused):
            result[name].append(f"the server itself answers {first.status}")
    return {name: sentences for name, sentences in result.items() if sentences}


def to_models(call: Asked) -> Asked:
    return replace(call, headers=[("Host", "models"), *call.headers])


async def test_mlserver(mlserver: MLServer, before_mlserver: Proxy, way: str) -> None:
    assert await find_differences(way, mlserver.http, before_mlserver, requests.MLSERVER) == {}


@pytest.mark.real_huggingface
async def test_huggingface(huggingface: HuggingFace, before_huggingface: Proxy, way: str) -> None:
    sent_requests = requests.HUGGINGFACE
    assert await find_differences(way, huggingface.http, before_huggingface, sent_requests) == {}


@pytest.mark.real_triton
async def test_triton(triton: Triton, before_triton: Proxy, way: str) -> None:
    assert await find_differences(way, triton.http, before_triton, requests.TRITON) == {}


@pytest.mark.real_kserve
async def test_kserve(kserve: KServe, before_kserve: Proxy, way: str) -> None:
    refused = requests.REFUSED | {"index"}
    assert await find_differences(way, kserve.http, before_kserve, requests.KSERVE, refused) == {}


async def test_a_caller_that_closes_its_half(
    mlserver: MLServer, before_mlserver: Proxy, kserve: KServe, before_kserve: Proxy
) -> None:
    """It says nothing more behind its request (`shutdown(SHUT_WR)`), and reads on. The servers
    themselves answer it as a rule, and sometimes do not."""
    pairs = (
        (mlserver, before_mlserver, requests.MLSERVER),
        (kserve, before_kserve, requests.KSERVE),
    )
    for server, proxy, sent_requests in pairs:
        for name, request in sent_requests.items():
            whole = await by_socket(server.http, to_models(request))
            half = await by_half_closed(proxy.http, to_models(request))
            assert differences(whole, half, besides=OURS) == [], name


async def test_chariot(chariot_engine: ChariotEngine, before_chariot: Proxy, way: str) -> None:
    assert (
        await find_differences(way, chariot_engine.address, before_chariot, requests.CHARIOT) == {}
    )


async def test_stub(stub: Stub, before_stub: Proxy, way: str) -> None:
    refused = [name for name in requests.STUB if re.fullmatch(r"status [45]\d\d", name)]
    assert await find_differences(way, stub.address, before_stub, requests.STUB, refused) == {}


async def test_answers_that_break_off(stub: Stub, before_stub: Proxy) -> None:
    assert await find_differences("socket", stub.address, before_stub, requests.BREAKS) == {}


@pytest.mark.parametrize(
    "call",
    [
        get("/%41/../b%2fc?d=%20&d=&e", ("X-Twice", "1"), ("x-twice", "2"), ("X-Empty", "")),
        get("/v2/models/a", method="PATCH"),
        post("/v2/models/m-1/infer", b"\0\xff" * 100, ("Authorization", "Bearer x")),
        post("/v2/models/m/infer", b"x" * 3_000_000, ("Content-Type", "image/png")),
        post("/v2/models/m/infer", b"\x1f\x8b none", ("Content-Encoding", "gzip")),
        post("/infer", b"{}", ("X-Odd", "ä, \u20ac".encode().decode("latin-1"))),
    ],
    ids=["path and headers", "method", "bytes", "large", "coded", "utf-8"],
)
async def test_the_request_reaches_the_server_unchanged(
    stub: Stub, before_stub: Proxy, call: Asked, way: str
) -> None:
    if way != "socket" and any(ord(sign) > 127 for _, value in call.headers for sign in value):
        pytest.skip("this client writes such headers in its own way")
    sent = to_models(call)
    assert await find_mirrored(way, before_stub.http, sent) == await find_mirrored(
        way, stub.address, sent
    )


async def find_mirrored(way: str, address: str, call: Asked) -> Any:
    """Return the request that the mirror received, or its status if that is not 200.

    Names of headers are in lower case. Hop-by-hop headers, and those that say that there is no
    body, are left out.
    """
    answer = await WAYS[way](address, call)
    if answer.status != 200:
        return answer.status
    mirror = json.loads(answer.body)
    lower_case = [(name.lower(), value) for name, value in mirror["headers"]]
    # 100-continue is answered by the next hop, not by the last
    left_out = HOP_BY_HOP | {"expect"}
    headers = [
        pair for pair in lower_case if pair[0] not in left_out and pair != ("content-length", "0")
    ]
    return mirror | {"headers": headers}


async def test_chunks_arrive_as_they_are_made(
    stub: Stub, before_stub: Proxy, tmp_path: Path
) -> None:
    """Each comes while the stub still holds the next one back."""
    body, gate, wire = {"stream": True, "prompt": "d c b a"}, Gate(tmp_path), b""
    request = post("/v1/completions", body, ("stub-gate", str(tmp_path)), CLOSE)
    async with aclosing(arrivals(before_stub.http, request)) as coming:
        for word in "abcd":
            while f'"{word}"'.encode() not in wire:
                wire += await anext(coming)
            gate.let_next()
        gate.let_next(2)  # the end
        wire += b"".join([part async for part in coming])
    direct = await by_socket(stub.address, request)
    assert read_answer(wire, "POST").body == direct.body
    assert direct.body.endswith(b"data: [DONE]\n\n")


async def test_answers_that_an_upstream_has_no_rest(
    omi_container: OmiContainer, before_omi: Proxy
) -> None:
    assert omi_container.address
    answer = await by_socket(before_omi.http, get("/v2"))
    assert (answer.status, json.loads(answer.body)) == (
        502,
        {"error": "the upstream omi answers gRPC alone"},
    )
