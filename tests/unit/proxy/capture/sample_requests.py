"""Requests of any protocol: captured, and rebuilt from what is kept of them."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import orjson

from inference_store.grpc_messages import message
from inference_store.platform.settings import ProxySettings
from inference_store.proxy.capture.prepare import Preparation
from inference_store.proxy.capture.request_remainder import rebuild_messages
from inference_store.proxy.capture.work import Work
from inference_store.proxy.exchange import Body, Exchange, Headers
from inference_store.proxy.protocols import PROTOCOLS, Call
from inference_store.proxy.rules import Rules
from tests.exchanges import exchange
from tests.settings import make_settings

PREPARATION = Preparation(make_settings(ProxySettings, proxy_upstream="http://up"))
INFER = "/inference.GRPCInferenceService/ModelInfer"
STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"


class SampleRequest(NamedTuple):
    """A request, and the answer that makes a batch of it."""

    protocol: str
    path: str
    messages: Sequence[bytes]
    answer: bytes = b"{}"
    headers: Headers = ()
    rules: Rules = Rules()
    answer_headers: Headers = ()


class CapturedRequest(NamedTuple):
    """The stored parts of a request."""

    documents: Sequence[Any]
    """The metadata objects, by batch index."""
    data: Mapping[int, bytes]
    """The data blobs, by batch index."""

    @property
    def request(self) -> Any:
        """The part that is stored with the first inference."""
        return self.documents[0]["request"]

    def rebuild(self) -> list[bytes]:
        """Rebuild the request's messages. Raise AssertionError if they were not kept."""
        assert self.request["messages"] is not None, self.request["why"]
        requests = enumerate(document["request"] for document in self.documents)
        own = {index: request["parts"] for index, request in requests if "parts" in request}
        return rebuild_messages(self.request, self.data, own)


def capture_request(request: SampleRequest) -> CapturedRequest:
    """Capture a request."""
    protocol = PROTOCOLS[request.protocol]
    call = protocol.recognise(protocol, "POST", request.path)
    assert isinstance(call, Call), request.path
    sample = _make_exchange(request)
    chosen = PREPARATION.choose(Work(sample, call, request.rules, "m"))
    assert chosen is not None
    blobs = {blob.key: blob.data for blob in PREPARATION.prepare(chosen, "p", 1).blobs}
    documents = [orjson.loads(blobs[key]) for key in blobs if key.endswith("/metadata")]
    keys = [document["event"]["data_storage_key"] for document in documents]
    return CapturedRequest(documents, {index: blobs[key] for index, key in enumerate(keys) if key})


def _make_exchange(call: SampleRequest) -> Exchange:
    body = Body(parts=call.messages, size=sum(map(len, call.messages)))
    if PROTOCOLS[call.protocol].transport == "rest":
        return exchange(
            b"",
            call.answer,
            path=call.path,
            request=body,
            request_headers=call.headers,
            response_headers=[("content-type", "application/json"), *call.answer_headers],
        )
    changes: dict[str, Any] = {"http_status": None, "grpc_code": 0}
    return exchange(
        b"",
        call.answer,
        path=call.path,
        request=body,
        transport="grpc",
        method=call.path,
        **changes,
    )


def encode_run(*items: dict[str, bytes]) -> bytes:
    """Encode OMI's request of these items: files by name."""
    inputs = [message("InputItem")(input=item) for item in items]
    return bytes(message("RunRequest")(inputs=inputs).SerializeToString())


def check_rebuilt(call: SampleRequest) -> None:
    is_rest = PROTOCOLS[call.protocol].transport == "rest"
    sent = [message_bytes for message_bytes in call.messages if message_bytes or not is_rest]
    assert capture_request(call).rebuild() == sent
