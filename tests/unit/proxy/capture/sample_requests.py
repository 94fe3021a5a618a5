"""Requests of any protocol: captured, and rebuilt from what is kept of them."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from inference_store.grpc_messages import message
from inference_store.proxy.exchange import Body, Headers
from inference_store.proxy.protocols import PROTOCOLS
from inference_store.proxy.rules import Rules
from tests.exchanges import exchange

from .captured import JSON, Captured, capture

UNKNOWN, BATCHED, VISION = Rules(), Rules(batched=True), Rules(task_type="object_detection")
INFER = "/inference.GRPCInferenceService/ModelInfer"
STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"
INFER_REST = "/v2/models/m/infer"


class SampleRequest(NamedTuple):
    """A request, and the answer that makes a batch of it."""

    protocol: str
    path: str
    messages: Sequence[bytes]
    answer: bytes = b"{}"
    headers: Headers = ()
    rules: Rules = UNKNOWN
    answer_headers: Headers = ()


def capture_request(request: SampleRequest) -> Captured:
    """Capture a request."""
    body = Body(parts=request.messages, size=sum(map(len, request.messages)))
    changes: dict[str, Any] = {
        "request_headers": request.headers,
        "response_headers": [*JSON, *request.answer_headers],
    }
    if PROTOCOLS[request.protocol].transport == "grpc":
        changes = {"transport": "grpc", "method": request.path, "http_status": None, "grpc_code": 0}
    sample = exchange(b"", request.answer, path=request.path, request=body, **changes)
    return capture(sample, request.rules, protocol=request.protocol)


def make_binary_request(head: bytes, tail: bytes, rules: Rules = UNKNOWN) -> SampleRequest:
    """Make a V2 request of this JSON and the bytes of the tensors behind it."""
    headers = [("inference-header-content-length", str(len(head)))]
    return SampleRequest("v2", INFER_REST, [head + tail], b"", headers, rules)


def encode_run(*items: dict[str, bytes]) -> bytes:
    """Encode OMI's request of these items: files by name."""
    inputs = [message("InputItem")(input=item) for item in items]
    return bytes(message("RunRequest")(inputs=inputs).SerializeToString())


def check_rebuilt(request: SampleRequest, *, count: int | None = None) -> None:
    """Check that the request is rebuilt byte for byte, and has `count` data."""
    is_rest = PROTOCOLS[request.protocol].transport == "rest"
    captured = capture_request(request)
    assert captured.rebuild() == [part for part in request.messages if part or not is_rest]
    assert count is None or len(captured.data) == count
