"""What a client gets over gRPC, with the proxy and without it."""

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import grpc
import pytest

from inference_store.proxy.capture import ID_HEADER
from tests.proxy_process import Proxy
from tests.upstreams.clients import OMI, V2, Clients
from tests.upstreams.compare import differences_of_calls
from tests.upstreams.huggingface import HuggingFace
from tests.upstreams.kserve import KServe
from tests.upstreams.mlserver import MLServer
from tests.upstreams.triton import Triton
from tests.upstreams.written import OmiContainer

pytestmark = pytest.mark.real_upstreams


@dataclass(frozen=True)
class Call:
    """A call: its method, and messages in protobuf's JSON form, or as bytes."""

    method: str
    messages: Sequence[Any] = ({},)
    kind: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)


def of_v2(method: str, *messages: Any, **options: Any) -> Call:
    """Of V2, whose requests are called after their methods."""
    kind = f"{method.replace('Stream', '')}Request"
    return Call(f"{V2}/{method}", messages or ({},), kind, options)


def tensor(name: str, datatype: str, shape: Sequence[int], **contents: Any) -> Any:
    return {"name": name, "datatype": datatype, "shape": list(shape), "contents": contents}


METADATA = [("x-tenant", "a"), ("x-tenant", "b"), ("x-b-bin-not", "c"), ("authorization", "d")]
_OF_V2 = {
    "live": of_v2("ServerLive"),
    "ready": of_v2("ServerReady", metadata=METADATA),
    "server": of_v2("ServerMetadata"),
    "no such model": of_v2("ModelInfer", {"model_name": "nobodys", "id": "n"}),
    "no model ready": of_v2("ModelReady", {"name": "nobodys"}),
    "no such method": Call(f"{V2}/Nothing", (b"\x0a\x01a",)),
    "no such service": Call("/nothing.Service/Nothing", (b"",)),
    "no message of it": Call(f"{V2}/ModelInfer", (b"\xff\xff\xff",)),
}
_PIXELS = {
    "model_name": "digits",
    "id": "p",
    "inputs": [tensor("pixels", "FP64", [1, 64], fp64_contents=[0.0] * 64)],
}


def text(model: str, name: str, *values: str) -> Any:
    """A request of one text; base64 of each."""
    return {
        "model_name": model,
        "id": "t",
        "inputs": [tensor(name, "BYTES", [len(values)], bytes_contents=list(values))],
    }


MLSERVER = {
    **_OF_V2,
    "model": of_v2("ModelMetadata", {"name": "digits"}),
    "model ready": of_v2("ModelReady", {"name": "digits"}),
    "infer": of_v2("ModelInfer", _PIXELS),
    "compressed": of_v2("ModelInfer", _PIXELS, compression="gzip"),
    "deadline": of_v2("ModelInfer", {**text("words", "text", "YQ=="), "parameters": {
        "pause": {"string_param": "5"}}}, timeout=0.5),
    "wrong shape": of_v2(
        "ModelInfer",
        {**_PIXELS, "inputs": [tensor("pixels", "FP64", [1, 2], fp64_contents=[1, 2])]},
    ),
    "no image": of_v2("ModelInfer", text("faces-text", "i", "LQ==")),
    "stream": of_v2("ModelStreamInfer", text("words", "text", "YSBiIGM=")),
    "stream of two": of_v2("ModelStreamInfer", *[text("words", "text", "YSBi")] * 2),
    "index": of_v2("RepositoryIndex"),
}  # fmt: skip
TRITON = {
    **_OF_V2,
    "model": of_v2("ModelMetadata", {"name": "twice"}),
    "configuration": of_v2("ModelConfig", {"name": "twice"}),
    "infer": of_v2(
        "ModelInfer",
        {
            "model_name": "twice",
            "id": "t",
            "parameters": {"a": {"string_param": "b"}, "c": {"int64_param": "1"}},
            "inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2]}],
            "raw_input_contents": ["AACAPwAAIEA="],
        },
    ),
    "failed": of_v2(
        "ModelInfer",
        {"model_name": "twice", "inputs": [tensor("x", "FP32", [1, 1], fp32_contents=[-1])]},
    ),
    "not streamed": of_v2("ModelInfer", text("words", "text", "YSBi")),
    "stream": of_v2("ModelStreamInfer", text("words", "text", "YSBiIGM=")),
    "stream that fails": of_v2("ModelStreamInfer", text("nobodys", "text", "YSBi")),
    "index": of_v2("RepositoryIndex"),
}
_TIME = text("story", "args", "b25jZSB1cG9uIGEgdGltZQ==")
_TOKENS = {
    **tensor("max_new_tokens", "INT64", [1], int64_contents=["5"]),
    "parameters": {"content_type": {"string_param": "raw"}},
}
HUGGINGFACE = {
    "classified": of_v2("ModelInfer", text("sentiment", "args", "YSBnb29kIGRheQ==")),
    "generated": of_v2("ModelInfer", {**_TIME, "inputs": [*_TIME["inputs"], _TOKENS]}),
    "two arguments": of_v2("ModelInfer", text("sentiment", "args", "YQ==", "Yg==")),
}
KSERVE = {
    **_OF_V2,
    "model": of_v2("ModelMetadata", {"name": "sums"}),
    "infer": of_v2(
        "ModelInfer",
        {
            "model_name": "sums",
            "id": "k",
            "inputs": [tensor("rows", "FP64", [1, 2], fp64_contents=[1, 2.5])],
        },
    ),
}


def run(*texts: str, **asked: Any) -> Call:
    """OMI's Run; base64 of each text."""
    inputs = [{"input": {"input.txt": each}} for each in texts]
    return Call(f"{OMI}/Run", ({"inputs": inputs, **asked},), "RunRequest")


OMI_RUNS = {
    "run": run("Z29vZA==", "YmFk", explain=True, detect_drift=True),
    "an item failed": run("Z29vZA==", ""),
    "all failed": run("", ""),
    "too many": run(*["Z29vZA=="] * 5),
    "run failed": run("ZmFpbCB0aGUgcnVu"),
    "no message of it": Call(f"{OMI}/Run", (b"\xff\xff\xff",)),
}

# What the servers refuse; all else they answer.
REFUSED = frozenset(
    {"no such model", "no model ready", "no such method", "no such service", "no message of it"}
    | {"deadline", "wrong shape", "no image", "failed", "not streamed", "two arguments"}
)


def differing(
    clients: Clients,
    direct: str,
    proxy: Proxy,
    calls: Mapping[str, Call],
    refused: Collection[str] = REFUSED,
) -> Any:
    """What differs, by the name of the call."""
    found = {}
    for name, call in calls.items():
        messages = [
            each if isinstance(each, bytes) else clients.encode(call.kind, each)
            for each in call.messages
        ]
        first, second = (
            clients.call(address, call.method, *messages, **call.options)
            for address in (direct, proxy.grpc)
        )
        found[name] = differences_of_calls(first, second, besides={ID_HEADER})
        if (first.code == "OK") == (name in refused):
            found[name].append(f"the server itself answers {first.code}: {first.details}")
    return {name: sentences for name, sentences in found.items() if sentences}


def test_mlserver(mlserver: MLServer, before_mlserver: Proxy, clients: Clients) -> None:
    assert differing(clients, mlserver.grpc, before_mlserver, MLSERVER) == {}


@pytest.mark.real_huggingface
def test_huggingface(huggingface: HuggingFace, before_huggingface: Proxy, clients: Clients) -> None:
    assert differing(clients, huggingface.grpc, before_huggingface, HUGGINGFACE) == {}


@pytest.mark.real_triton
def test_triton(triton: Triton, before_triton: Proxy, clients: Clients) -> None:
    refused = REFUSED - {"no model ready"}
    assert differing(clients, triton.grpc, before_triton, TRITON, refused) == {}


@pytest.mark.real_kserve
def test_kserve(kserve: KServe, before_kserve: Proxy, clients: Clients) -> None:
    assert differing(clients, kserve.grpc, before_kserve, KSERVE) == {}


def test_omi(omi_container: OmiContainer, before_omi: Proxy, clients: Clients) -> None:
    assert differing(clients, omi_container.address, before_omi, OMI_RUNS) == {}


def test_a_shutdown_is_refused(before_omi: Proxy, clients: Clients) -> None:
    called = clients.call(before_omi.grpc, f"{OMI}/Shutdown", b"")
    assert (called.code, called.responses) == ("PERMISSION_DENIED", ())


def test_answers_arrive_as_they_are_made(before_mlserver: Proxy, clients: Clients) -> None:
    asked = text("words", "text", "YSBiIGM=")
    asked["parameters"] = {"pause": {"string_param": "0.3"}}
    message = clients.encode("ModelInferRequest", asked)
    times = list(_arrivals(before_mlserver.grpc, message))
    waits = [later - sooner for sooner, later in pairwise(times)]
    assert len(waits) == 2
    assert min(waits) > 0.15, times


def _arrivals(address: str, message: bytes) -> Iterator[float]:
    """When each answer of a stream came."""
    with grpc.insecure_channel(address) as channel:
        ask: grpc.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(
            f"{V2}/ModelStreamInfer"
        )
        for _ in ask(iter([message]), timeout=120):
            yield time.monotonic()
