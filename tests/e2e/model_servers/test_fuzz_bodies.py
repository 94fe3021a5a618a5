"""Bodies of any coding, in any chunks, both ways: each comes through as its bytes are.

That all of it could be captured, too, is checked when the proxies end: see conftest.
"""

import asyncio
import gzip
import json
import struct
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inference_store.proxy.capture.ids import ID_HEADER
from tests.properties import examples
from tests.proxy_process import Proxy
from tests.upstreams.asking import Asked, by_socket
from tests.upstreams.compare import differences
from tests.upstreams.written import Stub

from .test_rest import find_mirrored

pytestmark = pytest.mark.real_upstreams
# Other work on the machine must not fail a test; a fixture's server is the same for all examples.
_UNHURRIED = settings(
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
_LENGTH = "Inference-Header-Content-Length"
_SIZES = st.integers(-2, 40) | st.sampled_from([-(2**63), 2**31, 2**63, 2**64, 10**30])
_PATHS = st.sampled_from(
    [
        *("/v2/models/m/infer", "/v2/models/m/infer_stream", "/v2/models/m/generate_stream"),
        *("/v2/models/m/versions/1/infer", "/raw"),
    ]
)


def _make_tensors(sizes: list[int]) -> Any:
    """Draw tensors of the binary extension, whose sizes may lie."""
    return [
        {
            "name": f"x{at}",
            "datatype": "BYTES" if size % 2 else "FP32",
            "shape": [size],
            "parameters": {"binary_data_size": size},
        }
        for at, size in enumerate(sizes)
    ]


_ELEMENTS = st.lists(st.binary(max_size=9), max_size=3).map(
    lambda parts: b"".join(struct.pack("<I", len(part)) + part for part in parts)
)
_DOCUMENTS = st.builds(
    lambda where, tensors: json.dumps({where: tensors, "id": "i"}).encode(),
    st.sampled_from(["inputs", "outputs"]),
    st.lists(_SIZES, max_size=3).map(_make_tensors),
)
_EVENTS = st.lists(_DOCUMENTS | st.binary(max_size=9), max_size=3).map(
    lambda events: b"".join(b"data: " + event + b"\n\n" for event in events)
)
_CODED: dict[str, Callable[[bytes], bytes]] = {"gzip": gzip.compress, "deflate": zlib.compress}


@st.composite
def _bodies(draw: st.DrawFn) -> tuple[bytes, list[tuple[str, str]]]:
    """A body, whole or torn, with the headers that tell of it, right or wrong."""
    content = draw(_DOCUMENTS | _EVENTS)
    length = draw(st.just(len(content)) | st.integers(-2, len(content) + 40) | _SIZES)
    headers = [(_LENGTH, str(length))] if draw(st.booleans()) else []
    body = content + draw(_ELEMENTS | st.binary(max_size=40))
    coding = draw(st.sampled_from(["", "gzip", "deflate"]))
    if coding:
        body = _CODED[coding](body)
        headers.append(("Content-Encoding", draw(st.sampled_from([coding, "gzip", "deflate"]))))
    torn = bytearray(body)
    for at in draw(st.lists(st.integers(0, len(body)), max_size=2)):
        torn[at : at + 1] = draw(st.binary(max_size=2))
    kind = draw(st.sampled_from(["application/json", "text/event-stream", "a/b"]))
    return bytes(torn[: draw(st.none() | st.integers(0, len(body)))]), [
        *headers,
        ("Content-Type", kind),
    ]


_CUTS = st.lists(st.integers(1, 60), max_size=6)


def chunk(body: bytes, cuts: Sequence[int], extension: str) -> bytes:
    """A body in chunks of these sizes, and the rest in one."""
    wire = b""
    for cut in cuts:
        part, body = body[:cut], body[cut:]
        if part:
            wire += f"{len(part):x}{extension}\r\n".encode() + part + b"\r\n"
    rest = f"{len(body):X}\r\n".encode() + body + b"\r\n" if body else b""
    return wire + rest + b"0\r\n\r\n"


@given(_PATHS, _bodies(), st.none() | _CUTS, st.sampled_from(["", ";a=b", ';c="d";e']))
@settings(_UNHURRIED, max_examples=examples(200))
def test_requests_in_any_chunks(
    stub: Stub,
    before_stub: Proxy,
    path: str,
    written: tuple[bytes, list[tuple[str, str]]],
    cuts: list[int] | None,
    extension: str,
) -> None:
    body, headers = written
    if cuts is not None:
        headers, body = [*headers, ("Transfer-Encoding", "chunked")], chunk(body, cuts, extension)
    request = Asked("POST", path, [("Host", "models"), *headers], body)
    direct, proxied = (
        asyncio.run(find_mirrored("socket", address, request))
        for address in (stub.address, before_stub.http)
    )
    if cuts is not None:  # how it is framed is each connection's own
        proxied["headers"] = [pair for pair in proxied["headers"] if pair[0] != "content-length"]
    assert proxied == direct


@given(_PATHS, _bodies(), st.integers(0, 4), st.sampled_from(["200", "400", "503"]))
@settings(_UNHURRIED, max_examples=examples(200))
def test_answers_in_any_chunks(
    stub: Stub,
    before_stub: Proxy,
    path: str,
    written: tuple[bytes, list[tuple[str, str]]],
    parts: int,
    status: str,
) -> None:
    body, headers = written
    echo = [("stub-echo", "content-type,content-encoding,inference-header-content-length")]
    echo += [("stub-echo-parts", str(parts)), ("stub-echo-status", status)]
    request = Asked("POST", path, [("Host", "models"), *headers, *echo], body)
    direct, proxied = asyncio.run(_send_to_both(request, stub.address, before_stub.http))
    assert (direct.body, direct.status) == (body, int(status))
    assert differences(direct, proxied, besides={ID_HEADER}) == []


async def _send_to_both(call: Asked, *addresses: str) -> Any:
    return [await by_socket(address, call) for address in addresses]
