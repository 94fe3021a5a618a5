"""Requests of any protocol: captured, and rebuilt from what is kept of them."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import orjson

from inference_store.proxy.capture.kept_request import rebuilt
from inference_store.proxy.capture.prepare import Preparation
from inference_store.proxy.capture.work import Work
from inference_store.proxy.exchange import Body, Exchange, Headers
from inference_store.proxy.protocols import PROTOCOLS, Call
from inference_store.proxy.rules import Rules
from inference_store.store.settings import ProxySettings
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


def captured(asked: Asked) -> tuple[Any, dict[int, bytes]]:
    """What is kept of the request, and the data blobs by batch index."""
    protocol = PROTOCOLS[asked.protocol]
    call = protocol.recognise(protocol, "POST", asked.path)
    assert isinstance(call, Call), asked.path
    made = _exchange(asked)
    chosen = PREPARATION.choose(Work(made, call, asked.rules, "m"))
    assert chosen is not None
    blobs = PREPARATION.prepare(chosen, "p", 1).blobs
    metadata = next(each.data for each in blobs if each.key.endswith("/metadata"))
    data = [each.data for each in blobs if each.key.endswith("/data")]
    return orjson.loads(metadata)["request"], dict(enumerate(data))


def _exchange(asked: Asked) -> Exchange:
    body = Body(parts=asked.messages, size=sum(map(len, asked.messages)))
    if PROTOCOLS[asked.protocol].transport == "rest":
        return exchange(
            b"", asked.answer, path=asked.path, request=body, request_headers=asked.headers
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


def is_rebuilt(asked: Asked) -> None:
    request, data = captured(asked)
    assert request["messages"] is not None, request["why"]
    is_rest = PROTOCOLS[asked.protocol].transport == "rest"
    sent = [each for each in asked.messages if each or not is_rest]
    assert rebuilt(request, data) == sent
