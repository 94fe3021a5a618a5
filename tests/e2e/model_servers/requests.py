"""Requests over REST to each real server: what a client asks, what it asks wrongly, and the rest.

V2 requests have an id: MLServer and KServe make one up where there is none, each time another.
"""

import base64
import gzip
import json
import struct
import zlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tests.upstreams.asking import Asked
from tests.upstreams.pictures import COINS, photograph, pictures

JSON = ("Content-Type", "application/json")


def get(path: str, *headers: tuple[str, str], method: str = "GET") -> Asked:
    return Asked(method, path, headers)


def post(path: str, body: Any, *headers: tuple[str, str]) -> Asked:
    """A request with a body: JSON, or bytes as they are."""
    if isinstance(body, bytes):
        return Asked("POST", path, headers, body)
    return Asked("POST", path, (JSON, *headers), json.dumps(body).encode())


def compress(path: str, body: Any, *headers: tuple[str, str]) -> Asked:
    packed = gzip.compress(json.dumps(body).encode(), mtime=0)
    return post(path, packed, JSON, ("Content-Encoding", "gzip"), *headers)


def make_infer_request(
    name: str, datatype: str, shape: list[int], data: list[Any], **more: Any
) -> Any:
    tensor = {"name": name, "datatype": datatype, "shape": shape, "data": data}
    return {"id": "known", "inputs": [tensor], **more}


PIXELS = make_infer_request("pixels", "FP64", [1, 64], [0.0] * 64)
WORDS = make_infer_request("text", "BYTES", [1], ["one two three"])
_DIGITS = "/v2/models/digits"
_OF_V2 = {
    "server": get("/v2"),
    "no such path": get("/v2/nothing?a=%2F&a=2"),
    "no such model": post("/v2/models/nobodys/infer", PIXELS),
    "no such method": get("/v2/health/live", method="DELETE"),
    "index": post("/v2/repository/index", {}),
}

_MLSERVER = {
    **_OF_V2,
    "head": get("/v2/health/ready", method="HEAD"),
    "infer": post(f"{_DIGITS}/infer", PIXELS),
    "escaped": post("/v2/models/%64igits/infer", PIXELS),
    "trailing slash": post(f"{_DIGITS}/infer/", PIXELS),
    "no json": post(f"{_DIGITS}/infer", b'{"inputs": [', JSON),
    "no body": get(f"{_DIGITS}/infer", method="POST"),
    "compressed": compress(f"{_DIGITS}/infer", PIXELS),
    "binary, not known": post(f"{_DIGITS}/infer", b"{}1", ("Inference-Header-Content-Length", "2")),
    "images": post("/v2/models/faces/infer", pictures(photograph(), photograph(COINS))),
    "no image": post("/v2/models/faces/infer", pictures(b"none")),
    "generate": post("/v2/models/words/generate", WORDS),
    "generate stream": post("/v2/models/words/generate_stream", WORDS),
    "infer with odd headers": post(
        "/v2/models/echo/infer",
        make_infer_request(
            "x", "INT64", [2], [1, -(2**60)], parameters={"metadata": '[{"key": "é"}]'}
        ),
        ("X-Request-ID", "from-outside"),
        ("Authorization", "Bearer secret"),
        ("Cookie", "a=1"),
    ),
}
# What it compresses says when that was.
MLSERVER: Mapping[str, Asked] = {
    name: replace(request, headers=[*request.headers, ("Accept-Encoding", "identity")])
    for name, request in _MLSERVER.items()
}

_SENTIMENT, _STORY = "/v2/models/sentiment/infer", "/v2/models/story/infer"
_TEXT = {"name": "args", "datatype": "BYTES", "shape": [1], "data": ["once upon a time"]}


def make_argument(name: str, datatype: str, value: Any) -> Any:
    tensor = {"name": name, "datatype": datatype, "shape": [1], "data": [value]}
    return {**tensor, "parameters": {"content_type": "raw"}}


GENERATED = [
    _TEXT,
    make_argument("max_new_tokens", "INT64", 5),
    make_argument("do_sample", "INT8", False),
    make_argument("repetition_penalty", "FP64", 1.5),
]
HUGGINGFACE: Mapping[str, Asked] = {
    "classified": post(_SENTIMENT, make_infer_request("args", "BYTES", [1], ["a good day"])),
    "two arguments": post(_SENTIMENT, make_infer_request("args", "BYTES", [2], ["a", "b"])),
    "generated": post(_STORY, {"id": "g", "inputs": GENERATED}),
}


def _make_binary_request(*rows: float, length: int | None = None) -> Asked:
    """A request of the binary data extension to the model `twice`, which doubles."""
    raw = struct.pack(f"<{len(rows)}f", *rows)
    tensor: dict[str, object] = {"name": "x", "datatype": "FP32", "shape": [1, len(rows)]}
    tensor |= {"parameters": {"binary_data_size": len(raw)}}
    outputs = [{"name": "y", "parameters": {"binary_data": True}}]
    head = json.dumps({"id": "b", "inputs": [tensor], "outputs": outputs}).encode()
    size = str(len(head) if length is None else length)
    headers = [
        ("Inference-Header-Content-Length", size),
        ("Content-Type", "application/octet-stream"),
    ]
    return Asked("POST", "/v2/models/twice/infer", headers, head + raw)


_TWICE = make_infer_request("x", "FP32", [1, 2], [1, 2.5])

TRITON: Mapping[str, Asked] = {
    **_OF_V2,
    "configuration": get("/v2/models/twice/config"),
    "infer with a version": post("/v2/models/twice/versions/1/infer", _TWICE),
    "failed": post("/v2/models/twice/infer", make_infer_request("x", "FP32", [1, 1], [-1])),
    "no json": post("/v2/models/twice/infer", b'{"inputs": [', JSON),
    "binary": _make_binary_request(1, 2.5, 1e9),
    "binary, header too long": _make_binary_request(1, length=4000),
    "gzip": compress("/v2/models/twice/infer", _TWICE, ("Accept-Encoding", "gzip")),
    "deflate": post(
        "/v2/models/twice/infer",
        zlib.compress(json.dumps(_TWICE).encode()),
        JSON,
        ("Content-Encoding", "deflate"),
        ("Accept-Encoding", "deflate"),
    ),
    "broken gzip": post(
        "/v2/models/twice/infer", b"\x1f\x8b none", JSON, ("Content-Encoding", "gzip")
    ),
    "generate stream": post("/v2/models/words/generate_stream", {"text": "one two three"}),
}

KSERVE: Mapping[str, Asked] = {
    **_OF_V2,
    "v1 models": get("/v1/models"),
    "v1 predict": post("/v1/models/sums:predict", {"instances": [[1, 2.5], [3, 4]]}),
    "v1 escaped colon": post("/v1/models/sums%3Apredict", {"instances": [[1]]}),
    "v1 no json": post("/v1/models/sums:predict", b"{", JSON),
    "v2 infer": post(
        "/v2/models/sums/infer", make_infer_request("rows", "FP64", [2, 2], [1, 2.5, 3, 4])
    ),
}

_IMAGE = base64.b64encode(photograph()).decode()
_LINE = json.dumps({"input": _IMAGE, "parameters": {"threshold": 1}}).encode()

CHARIOT: Mapping[str, Asked] = {
    "ready": get("/ready"),
    "json": post("/infer", {"input": _IMAGE, "parameters": {}}),
    "json lines": post("/infer", _LINE + b"\n" + _LINE, ("Content-Type", "application/jsonl")),
    "raw": post(
        "/infer",
        photograph(),
        ("Content-Type", "image/png"),
        ("chariot-inference-parameters", '{"threshold": 1}'),
    ),
    "no image": post("/infer", {"input": "bm9uZQ=="}),
    "no json": post("/infer", b"{", JSON),
    "no such path": get("/infer/what"),
}

_CHAT = {"model": "m", "messages": [{"role": "user", "content": "one two three"}]}
_COMPLETIONS = "/v1/completions"

STUB: Mapping[str, Asked] = {
    "chat": post("/v1/chat/completions", _CHAT),
    "chat stream": post("/v1/chat/completions", {**_CHAT, "stream": True}),
    "completion": post(_COMPLETIONS, {"model": "m", "prompt": "one two"}),
    "gzip": post(_COMPLETIONS, {"prompt": "a b"}, ("stub-encoding", "gzip")),
    "deflate": post(_COMPLETIONS, {"prompt": "a b"}, ("stub-encoding", "deflate")),
    "predict": post("/v1/models/sums:predict", {"instances": [[1, 2], [3]]}),
    **{
        f"status {status}": post(_COMPLETIONS, {"prompt": "a"}, ("stub-status", str(status)))
        for status in (201, 301, 400, 401, 413, 422, 429, 500, 502, 503, 504)
    },
}
"""What the stub answers to the caller; its mirror shows what reached it: see test_fuzz."""

REFUSED = frozenset(
    (
        *("no such path", "no such model", "no such method", "no json", "no body", "no image"),
        *("failed", "head", "v1 no json", "two arguments"),
        *("binary, not known", "binary, header too long"),
    )
)
"""The requests that the real servers refuse; they answer all others."""
