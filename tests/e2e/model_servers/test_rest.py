"""What a client gets over REST, with the proxy and without it."""

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from inference_store.proxy.capture.ids import ID_HEADER
from tests.proxy_process import Proxy
from tests.upstreams.asking import WAYS, Asked, arrivals, by_half_closed, by_socket
from tests.upstreams.compare import HOP_BY_HOP, differences
from tests.upstreams.huggingface import HuggingFace
from tests.upstreams.kserve import KServe
from tests.upstreams.mlserver import MLServer
from tests.upstreams.triton import Triton
from tests.upstreams.written import ChariotEngine, OmiContainer, Stub

from . import requests
from .requests import get, post

pytestmark = pytest.mark.real_upstreams
# Answers differ in it alone, and only where they are captured.
OURS = {ID_HEADER}
CLOSE = ("Connection", "close")


async def differing(
    way: str,
    direct: str,
    proxy: Proxy,
    asked: Mapping[str, Asked],
    refused: Collection[str] = requests.REFUSED,
) -> Any:
    """What differs, by the name of the request. Hosts are given: redirects answer them."""
    send, found = WAYS[way], {}
    for name, each in asked.items():
        first, second = await send(direct, to_models(each)), await send(proxy.http, to_models(each))
        found[name] = differences(first, second, besides=OURS)
        if (first.status >= 400) != (name in refused):
            found[name].append(f"the server itself answers {first.status}")
    return {name: sentences for name, sentences in found.items() if sentences}


def to_models(asked: Asked) -> Asked:
    return replace(asked, headers=[("Host", "models"), *asked.headers])


async def test_mlserver(mlserver: MLServer, before_mlserver: Proxy, way: str) -> None:
    assert await differing(way, mlserver.http, before_mlserver, requests.MLSERVER) == {}


@pytest.mark.real_huggingface
async def test_huggingface(huggingface: HuggingFace, before_huggingface: Proxy, way: str) -> None:
    asked = requests.HUGGINGFACE
    assert await differing(way, huggingface.http, before_huggingface, asked) == {}


@pytest.mark.real_triton
async def test_triton(triton: Triton, before_triton: Proxy, way: str) -> None:
    assert await differing(way, triton.http, before_triton, requests.TRITON) == {}


@pytest.mark.real_kserve
async def test_kserve(kserve: KServe, before_kserve: Proxy, way: str) -> None:
    refused = requests.REFUSED | {"index"}
    assert await differing(way, kserve.http, before_kserve, requests.KSERVE, refused) == {}


async def test_a_caller_that_closes_its_half(
    mlserver: MLServer, before_mlserver: Proxy, kserve: KServe, before_kserve: Proxy
) -> None:
    """It says nothing more behind its request (`shutdown(SHUT_WR)`), and reads on. The servers
    themselves answer it as a rule, and sometimes do not."""
    pairs = (
        (mlserver, before_mlserver, requests.MLSERVER),
        (kserve, before_kserve, requests.KSERVE),
    )
    for server, proxy, asked in pairs:
        for name, each in asked.items():
            whole = await by_socket(server.http, to_models(each))
            half = await by_half_closed(proxy.http, to_models(each))
            assert differences(whole, half, besides=OURS) == [], name


async def test_chariot(chariot_engine: ChariotEngine, before_chariot: Proxy, way: str) -> None:
    assert await differing(way, chariot_engine.address, before_chariot, requests.CHARIOT) == {}


async def test_stub(stub: Stub, before_stub: Proxy, way: str) -> None:
    refused = [name for name in requests.STUB if re.fullmatch(r"status [45]\d\d", name)]
    assert await differing(way, stub.address, before_stub, requests.STUB, refused) == {}


async def test_answers_that_break_off(stub: Stub, before_stub: Proxy) -> None:
    assert await differing("socket", stub.address, before_stub, requests.BREAKS) == {}


@pytest.mark.parametrize(
    "asked",
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
async def test_what_reaches_the_server(
    stub: Stub, before_stub: Proxy, asked: Asked, way: str
) -> None:
    if way != "socket" and any(ord(sign) > 127 for _, value in asked.headers for sign in value):
        pytest.skip("this client writes such headers in its own way")
    sent = to_models(asked)
    assert await mirrored(way, before_stub.http, sent) == await mirrored(way, stub.address, sent)


async def mirrored(way: str, address: str, asked: Asked) -> Any:
    """What the mirror says came, or the status where it says nothing: names of headers in lower
    case, hop-by-hop ones left out, and so what says that there is no body."""
    answer = await WAYS[way](address, asked)
    if answer.status != 200:
        return answer.status
    said = json.loads(answer.body)
    named = [(name.lower(), value) for name, value in said["headers"]]
    # who waits before a large body is told to go on by the next on the way, not by the last
    left_out = HOP_BY_HOP | {"expect"}
    shown = [pair for pair in named if pair[0] not in left_out and pair != ("content-length", "0")]
    return said | {"headers": shown}


async def test_chunks_arrive_as_they_are_made(stub: Stub, before_stub: Proxy) -> None:
    said = {"stream": True, "prompt": "d c b a"}
    asked = post("/v1/completions", said, ("stub-wait", "0.3"), CLOSE)
    direct, came = await arrivals(stub.address, asked), await arrivals(before_stub.http, asked)
    times = [next(at for at, part in came if f'"{word}"'.encode() in part) for word in "abcd"]
    waits = [later - sooner for sooner, later in pairwise(times)]
    assert min(waits) > 0.15, times
    events = [_events(each) for each in (direct, came)]
    assert events[0] == events[1]


def _events(came: list[tuple[float, bytes]]) -> list[bytes]:
    wire = b"".join(part for _, part in came)
    return [line for line in wire.split(b"\r\n") if line.startswith(b"data: ")]


async def test_a_server_without_rest_is_said_to_have_none(
    omi_container: OmiContainer, before_omi: Proxy
) -> None:
    assert omi_container.address
    answer = await by_socket(before_omi.http, get("/v2"))
    assert (answer.status, json.loads(answer.body)) == (
        502,
        {"error": "the upstream omi answers gRPC alone"},
    )
