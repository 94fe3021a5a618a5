"""The Open Inference Protocol (V2) over gRPC: messages, read as the tensors of V2 over REST."""

from collections.abc import Mapping
from typing import Final

from inference_store.inference.events import CaptureSide
from inference_store.proxy.exchange import Body, Exchange
from inference_store.proxy.protocols.problems import NAMES, Problem, missing
from inference_store.proxy.protocols.protocol import Call, Kind, Model, Protocol, Reading
from inference_store.proxy.protocols.v2.items import run_of
from inference_store.proxy.protocols.v2.reading import reading_of

from .decoding import Decoded, request_in, response_in
from .streams import read_stream

_CALLS: Final[Mapping[str, Kind]] = {
    "/inference.GRPCInferenceService/ModelInfer": "infer",
    "/inference.GRPCInferenceService/ModelStreamInfer": "stream",
}


def recognise(protocol: Protocol, _: str, path: str) -> Call | None:
    """Infer, and its stream; the message names the model."""
    kind = _CALLS.get(path)
    return None if kind is None else Call(protocol, kind)


def read(exchange: Exchange, call: Call, model: Model) -> Reading:
    """What a call was about."""
    if call.kind == "stream":
        return read_stream(exchange, model)
    asked, answered = Decoded(), Decoded()
    if exchange.request.whole:
        asked = request_in(exchange.request.bytes)
    if exchange.response.whole and exchange.response.parts:
        answered = response_in(exchange.response.bytes)
    return reading_of(
        asked.request,
        answered.response,
        model,
        request_bytes=exchange.request.bytes or None,
        response_bytes=exchange.response.bytes or None,
        problems=[
            _not_kept(exchange.request, "request"),
            asked.problem,
            _not_kept(exchange.response, "response"),
            answered.problem,
        ],
        run=run_of(exchange.response_trailers),
    )


def _not_kept(body: Body, side: CaptureSide) -> Problem | None:
    return missing(body, side, f"{NAMES[side]} was not kept: {body.size} bytes")


V2_GRPC: Final = Protocol(
    name="v2-grpc",
    title="Open Inference Protocol (V2) over gRPC",
    transport="grpc",
    recognise=recognise,
    read=read,
)

__all__ = ["V2_GRPC"]
