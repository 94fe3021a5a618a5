"""Answers over REST are the same with the proxy and without it.

V2 requests have an id: MLServer and KServe make one up where there is none, each time another.
"""

import gzip
import json
import re
import struct
import subprocess
import zlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.proxy_process import Proxy
from tests.upstreams import model_servers
from tests.upstreams.asking import Asked, by_socket, differences, make_binary
from tests.upstreams.pictures import COINS, photograph, pictures

from .conftest import Start

pytestmark = pytest.mark.real_upstreams
CAPTURE = (Path(__file__).parents[3] / "docs" / "how-to" / "capture.md").read_text()
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


def _make_binary_request(*rows: float, length: int | None = None) -> Asked:
    """A request of the binary data extension to the model `twice`, which doubles."""
    raw = struct.pack(f"<{len(rows)}f", *rows)
    body, headers = make_binary("x", "FP32", [1, len(rows)], raw, "y", id="b")
    if length is not None:
        headers["Inference-Header-Content-Length"] = str(length)
    return Asked("POST", "/v2/models/twice/infer", [*headers.items()], body)


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

REFUSED = frozenset(
    (
        *("no such path", "no such model", "no such method", "no json", "no body", "no image"),
        *("failed", "head", "v1 no json"),
        *("binary, not known", "binary, header too long"),
    )
)
"""The requests that the real servers refuse; they answer all others."""

# Answers differ in it only, and only if they are captured.
OURS = {"inference-store-id"}
PLAIN = ("Accept-Encoding", "identity")
NUMBERS = make_infer_request("x", "INT64", [2], [1, -(2**60)], parameters={"kept": 1.0})
STRIPPED = {
    "/v2/models/digits/infer": PIXELS,
    "/v2/models/echo/infer": NUMBERS,
    "/v2/models/words/generate_stream": WORDS,
}


def compare(
    direct: str, proxy: Proxy, calls: Mapping[str, Asked], refused: Collection[str] = REFUSED
) -> None:
    for name, call in calls.items():
        theirs, ours = (by_socket(at, to_models(call)) for at in (direct, proxy.http))
        assert differences(theirs, ours, besides=OURS) == [], name
        assert (theirs.status >= 400) == (name in refused), (name, theirs)


def to_models(call: Asked) -> Asked:
    """Fix the host: redirects repeat it."""
    return replace(call, headers=[("Host", "models"), *call.headers])


def test_mlserver(mlserver: model_servers.MLServer, before_mlserver: Proxy) -> None:
    compare(mlserver.http, before_mlserver, MLSERVER)


@pytest.mark.real_triton
def test_triton(triton: model_servers.Triton, before_triton: Proxy) -> None:
    compare(triton.http, before_triton, TRITON)


@pytest.mark.real_kserve
def test_kserve(kserve: model_servers.KServe, before_kserve: Proxy) -> None:
    compare(kserve.http, before_kserve, KSERVE, REFUSED | {"index"})


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


def test_mlserver_answers_a_stripped_request_as_one_without_metadata(
    mlserver: model_servers.MLServer, stripping_mlserver: Proxy
) -> None:
    for path, body in STRIPPED.items():
        without = {**body, "parameters": body.get("parameters", {})}
        without["inputs"] = [tensor | {"parameters": {}} for tensor in body["inputs"]]
        for write in (post, compress):
            plain = to_models(write(path, without, PLAIN))
            direct = by_socket(mlserver.http, plain)
            call = to_models(write(path, with_metadata(body), PLAIN))
            stripped = by_socket(stripping_mlserver.http, call)
            assert direct.status == 200, (path, write)
            assert differences(direct, stripped, besides=OURS) == [], (path, write)


@pytest.mark.real_curl
def test_a_picture_is_sent(
    mlserver: model_servers.MLServer, before_mlserver: Proxy, tmp_path: Path
) -> None:
    """By the command of docs/how-to/capture.md, unchanged."""
    (tmp_path / "photo.jpg").write_bytes(photograph())
    commands = re.findall(r"^```\n(.*?)^```", CAPTURE, re.DOTALL | re.MULTILINE)
    (command,) = [candidate for candidate in commands if "photo.jpg" in candidate]
    assert "127.0.0.1:8090" in command
    direct, proxied = (
        subprocess.run(
            ["bash", "-c", command.replace("127.0.0.1:8090", address)],
            cwd=tmp_path,
            capture_output=True,
            check=True,
        ).stdout
        for address in (mlserver.http, before_mlserver.http)
    )
    assert proxied == direct
    answer = json.loads(proxied)
    assert answer["id"] == "frame-987"
    assert answer["outputs"][0]["data"][0]["label"] == "face"
