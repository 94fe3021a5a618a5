"""Answers over gRPC are the same with the proxy and without it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.proxy_process import Proxy
from tests.upstreams.asking import OMI, V2, Clients, differences_of_calls
from tests.upstreams.model_servers import HuggingFace, KServe, MLServer, OmiContainer, Triton

pytestmark = pytest.mark.real_upstreams


@dataclass(frozen=True)
class Call:
    """A call: its method, and messages in protobuf's JSON form, or as bytes."""

    method: str
    messages: Sequence[Any] = ({},)
    kind: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)


def make_v2_call(method: str, *messages: Any, **options: Any) -> Call:
    """Make a call of V2, whose requests are named after their methods."""
    kind = f"{method.replace('Stream', '')}Request"
    return Call(f"{V2}/{method}", messages or ({},), kind, options)


def make_tensor(name: str, datatype: str, shape: Sequence[int], **contents: Any) -> Any:
    return {"name": name, "datatype": datatype, "shape": list(shape), "contents": contents}


METADATA = [("x-tenant", "a"), ("x-tenant", "b"), ("x-b-bin-not", "c"), ("authorization", "d")]
_OF_V2 = {
    "ready": make_v2_call("ServerReady", metadata=METADATA),
    "server": make_v2_call("ServerMetadata"),
    "no such model": make_v2_call("ModelInfer", {"model_name": "nobodys", "id": "n"}),
    "no such method": Call(f"{V2}/Nothing", (b"\x0a\x01a",)),
    "no such service": Call("/nothing.Service/Nothing", (b"",)),
    "no message of it": Call(f"{V2}/ModelInfer", (b"\xff\xff\xff",)),
}
_PIXELS = {
    "model_name": "digits",
    "id": "p",
    "inputs": [make_tensor("pixels", "FP64", [1, 64], fp64_contents=[0.0] * 64)],
}


def make_text_request(model: str, name: str, *values: str) -> Any:
    """Make a request of one text in base64."""
    return {
        "model_name": model,
        "id": "t",
        "inputs": [make_tensor(name, "BYTES", [len(values)], bytes_contents=list(values))],
    }


MLSERVER = {
    **_OF_V2,
    "infer": make_v2_call("ModelInfer", _PIXELS),
    "compressed": make_v2_call("ModelInfer", _PIXELS, compression="gzip"),
    "no image": make_v2_call("ModelInfer", make_text_request("faces-text", "i", "LQ==")),
    "stream of two": make_v2_call(
        "ModelStreamInfer", *[make_text_request("words", "text", "YSBi")] * 2
    ),
}
TRITON = {
    **_OF_V2,
    "configuration": make_v2_call("ModelConfig", {"name": "twice"}),
    "infer": make_v2_call(
        "ModelInfer",
        {
            "model_name": "twice",
            "id": "t",
            "parameters": {"a": {"string_param": "b"}, "c": {"int64_param": "1"}},
            "inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2]}],
            "raw_input_contents": ["AACAPwAAIEA="],
        },
    ),
    "not streamed": make_v2_call("ModelInfer", make_text_request("words", "text", "YSBi")),
    "stream": make_v2_call("ModelStreamInfer", make_text_request("words", "text", "YSBiIGM=")),
    "stream that fails": make_v2_call(
        "ModelStreamInfer", make_text_request("nobodys", "text", "YSBi")
    ),
}
_TIME = make_text_request("story", "args", "b25jZSB1cG9uIGEgdGltZQ==")
_TOKENS = {
    **make_tensor("max_new_tokens", "INT64", [1], int64_contents=["5"]),
    "parameters": {"content_type": {"string_param": "raw"}},
}
HUGGINGFACE = {
    "generated": make_v2_call("ModelInfer", {**_TIME, "inputs": [*_TIME["inputs"], _TOKENS]}),
    "two arguments": make_v2_call(
        "ModelInfer", make_text_request("sentiment", "args", "YQ==", "Yg==")
    ),
}
KSERVE = {
    **_OF_V2,
    "infer": make_v2_call(
        "ModelInfer",
        {
            "model_name": "sums",
            "id": "k",
            "inputs": [make_tensor("rows", "FP64", [1, 2], fp64_contents=[1, 2.5])],
        },
    ),
}


def run(*texts: str, **fields: Any) -> Call:
    """Make OMI's Run; base64 of each text."""
    inputs = [{"input": {"input.txt": content}} for content in texts]
    return Call(f"{OMI}/Run", ({"inputs": inputs, **fields},), "RunRequest")


OMI_RUNS = {
    "run": run("Z29vZA==", "", explain=True, detect_drift=True),
    "run failed": run("ZmFpbCB0aGUgcnVu"),
    "no message of it": Call(f"{OMI}/Run", (b"\xff\xff\xff",)),
}

# The calls that the servers refuse; they answer all others.
REFUSED = frozenset(
    {"no such model", "no such method", "no such service", "no message of it"}
    | {"no image", "not streamed", "two arguments"}
)


def find_differences(clients: Clients, direct: str, proxy: Proxy, calls: Mapping[str, Call]) -> Any:
    collected = {}
    for name, call in calls.items():
        messages = [
            message if isinstance(message, bytes) else clients.encode(call.kind, message)
            for message in call.messages
        ]
        first, second = (
            clients.call(address, call.method, *messages, **call.options)
            for address in (direct, proxy.grpc)
        )
        collected[name] = differences_of_calls(first, second, besides={"inference-store-id"})
        if (first.code == "OK") == (name in REFUSED):
            collected[name].append(f"the server itself answers {first.code}: {first.details}")
    return {name: sentences for name, sentences in collected.items() if sentences}


def test_mlserver(mlserver: MLServer, before_mlserver: Proxy, clients: Clients) -> None:
    assert find_differences(clients, mlserver.grpc, before_mlserver, MLSERVER) == {}


@pytest.mark.real_huggingface
def test_huggingface(huggingface: HuggingFace, before_huggingface: Proxy, clients: Clients) -> None:
    assert find_differences(clients, huggingface.grpc, before_huggingface, HUGGINGFACE) == {}


@pytest.mark.real_triton
def test_triton(triton: Triton, before_triton: Proxy, clients: Clients) -> None:
    assert find_differences(clients, triton.grpc, before_triton, TRITON) == {}


@pytest.mark.real_kserve
def test_kserve(kserve: KServe, before_kserve: Proxy, clients: Clients) -> None:
    assert find_differences(clients, kserve.grpc, before_kserve, KSERVE) == {}


def test_omi(omi_container: OmiContainer, before_omi: Proxy, clients: Clients) -> None:
    assert find_differences(clients, omi_container.address, before_omi, OMI_RUNS) == {}


def test_a_shutdown_is_refused(before_omi: Proxy, clients: Clients) -> None:
    called = clients.call(before_omi.grpc, f"{OMI}/Shutdown", b"")
    assert (called.code, called.responses) == ("PERMISSION_DENIED", ())
