"""Requests of any protocol: captured, and rebuilt from what is kept of them."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import orjson

from inference_store.grpc_messages import message
from inference_store.platform.settings import ProxySettings
from inference_store.proxy.capture.kept_request import rebuilt
from inference_store.proxy.capture.prepare import Preparation
from inference_store.proxy.capture.work import Work
from inference_store.proxy.exchange import Body, Exchange, Headers
from inference_store.proxy.protocols import PROTOCOLS, Call
from inference_store.proxy.rules import Rules
from tests.exchanges import exchange
from tests.settings import make_settings

PREPARATION = Preparation(make_settings(ProxySettings, proxy_upstream="http://up"))
INFER = "/inference.GRPCInferenceService/ModelInfer"
STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"


class Asked(NamedTuple):
    """A request, and the answer that makes a batch of it."""

    protocol: str
    path: str
    messages: Sequence[bytes]
    answer: bytes = b"{}"
    headers: Headers = ()
    rules: Rules = Rules()
    answer_headers: Headers = ()


class Captured(NamedTuple):
    """What is kept of a request."""

    documents: Sequence[Any]
    """The metadata objects, by batch index."""
    data: Mapping[int, bytes]
    """The data blobs, by batch index."""

    @property
    def request(self) -> Any:
        """What stands with the first inference."""
        return self.documents[0]["request"]

    def again(self) -> list[bytes]:
        """The request's messages. Raises AssertionError where they were not kept."""
        assert self.request["messages"] is not None, self.request["why"]
        requests = enumerate(each["request"] for each in self.documents)
        own = {index: each["parts"] for index, each in requests if "parts" in each}
        return rebuilt(self.request, self.data, own)


def captured(asked: Asked) -> Captured:
    """Capture a request."""
    protocol = PROTOCOLS[asked.protocol]
    call = protocol.recognise(protocol, "POST", asked.path)
    assert isinstance(call, Call), asked.path
    made = _exchange(asked)
    chosen = PREPARATION.choose(Work(made, call, asked.rules, "m"))
    assert chosen is not None
    blobs = {each.key: each.data for each in PREPARATION.prepare(chosen, "p", 1).blobs}
    documents = [orjson.loads(blobs[key]) for key in blobs if key.endswith("/metadata")]
    keys = [each["event"]["data_storage_key"] for each in documents]
    return Captured(documents, {index: blobs[key] for index, key in enumerate(keys) if key})


def _exchange(asked: Asked) -> Exchange:
    body = Body(parts=asked.messages, size=sum(map(len, asked.messages)))
    if PROTOCOLS[asked.protocol].transport == "rest":
        return exchange(
            b"",
            asked.answer,
            path=asked.path,
            request=body,
            request_headers=asked.headers,
            response_headers=[("content-type", "application/json"), *asked.answer_headers],
        )
    changes: dict[str, Any] = {"http_status": None, "grpc_code": 0}
    return exchange(
        b"",
        asked.answer,
        path=asked.path,
        request=body,
        transport="grpc",
        method=asked.path,
        **changes,
    )


def run(*items: dict[str, bytes]) -> bytes:
    """OMI's request of these items: files by name."""
    inputs = [message("InputItem")(input=item) for item in items]
    return bytes(message("RunRequest")(inputs=inputs).SerializeToString())


def is_rebuilt(asked: Asked) -> None:
    is_rest = PROTOCOLS[asked.protocol].transport == "rest"
    sent = [each for each in asked.messages if each or not is_rest]
    assert captured(asked).again() == sent
