"""Answers over gRPC are the same with the proxy and without it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc
import pytest

from inference_store.grpc_messages import message
from tests.integration.proxy.grpc_upstream import INFER, STREAM, V2, call_stream
from tests.proxy_process import Proxy
from tests.upstreams.model_servers import KServe, MLServer, Triton

pytestmark = pytest.mark.real_upstreams


@dataclass(frozen=True)
class Call:
    method: str
    messages: Sequence[bytes] = (b"",)
    options: Mapping[str, Any] = field(default_factory=dict)


def make_infer_call(*requests: Mapping[str, Any], path: str = INFER, **options: Any) -> Call:
    built = [message("inference.ModelInferRequest")(**request) for request in requests]
    return Call(path, [request.SerializeToString() for request in built], options)


def make_tensor(name: str, datatype: str, shape: Sequence[int], **contents: Any) -> Any:
    return {"name": name, "datatype": datatype, "shape": list(shape), "contents": contents}


METADATA = (("x-tenant", "a"), ("x-tenant", "b"), ("x-b-bin-not", "c"), ("authorization", "d"))
_OF_V2 = {
    "ready": Call(f"{V2}ServerReady", options={"metadata": METADATA}),
    "server": Call(f"{V2}ServerMetadata"),
    "no such model": make_infer_call({"model_name": "nobodys", "id": "n"}),
    "no such method": Call(f"{V2}Nothing", (b"\x0a\x01a",)),
    "no such service": Call("/nothing.Service/Nothing"),
    "no message of it": Call(INFER, (b"\xff\xff\xff",)),
}
_PIXELS = {
    "model_name": "digits",
    "id": "p",
    "inputs": [make_tensor("pixels", "FP64", [1, 64], fp64_contents=[0.0] * 64)],
}


def make_text_request(model: str, name: str, *values: bytes) -> Any:
    tensor = make_tensor(name, "BYTES", [len(values)], bytes_contents=values)
    return {"model_name": model, "id": "t", "inputs": [tensor]}


MLSERVER = {
    **_OF_V2,
    "infer": make_infer_call(_PIXELS),
    "compressed": make_infer_call(_PIXELS, compression=grpc.Compression.Gzip),
    "no image": make_infer_call(make_text_request("faces-text", "i", b"-")),
    "stream of two": make_infer_call(
        *[make_text_request("words", "text", b"a b")] * 2, path=STREAM
    ),
}
TRITON = {
    **_OF_V2,
    "configuration": Call(f"{V2}ModelConfig", (b"\x0a\x05twice",)),
    "infer": make_infer_call(
        {
            "model_name": "twice",
            "id": "t",
            "parameters": {"a": {"string_param": "b"}, "c": {"int64_param": 1}},
            "inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2]}],
            "raw_input_contents": [b"\0\0\x80?\0\0 @"],
        },
    ),
    "not streamed": make_infer_call(make_text_request("words", "text", b"a b")),
    "stream": make_infer_call(make_text_request("words", "text", b"a b c"), path=STREAM),
    "stream that fails": make_infer_call(make_text_request("nobodys", "text", b"a b"), path=STREAM),
}
_ROWS = make_tensor("rows", "FP64", [1, 2], fp64_contents=[1, 2.5])
KSERVE = {
    **_OF_V2,
    "infer": make_infer_call({"model_name": "sums", "id": "k", "inputs": [_ROWS]}),
}

# The calls that the servers refuse; they answer all others.
REFUSED = frozenset(
    {"no such model", "no such method", "no such service", "no message of it"}
    | {"no image", "not streamed"}
)


async def compare(direct: str, proxy: Proxy, calls: Mapping[str, Call]) -> None:
    for name, call in calls.items():
        theirs, ours = [
            await call_stream(address, call.method, call.messages, **call.options)
            for address in (direct, proxy.grpc)
        ]
        assert ours == theirs, name
        assert (theirs.code is not grpc.StatusCode.OK) == (name in REFUSED), (name, theirs)


async def test_mlserver(mlserver: MLServer, before_mlserver: Proxy) -> None:
    await compare(mlserver.grpc, before_mlserver, MLSERVER)


@pytest.mark.real_triton
async def test_triton(triton: Triton, before_triton: Proxy) -> None:
    await compare(triton.grpc, before_triton, TRITON)


@pytest.mark.real_kserve
async def test_kserve(kserve: KServe, before_kserve: Proxy) -> None:
    await compare(kserve.grpc, before_kserve, KSERVE)
