"""The Open Inference Protocol (V2) over gRPC: messages, read as the tensors of V2 over REST."""

import re
from typing import Final

from inference_store.proxy.exchange import Exchange
from inference_store.proxy.protocols.problems import describe_missing
from inference_store.proxy.protocols.protocol import Call, Model, Protocol, Reading
from inference_store.proxy.protocols.v2.items import read_run
from inference_store.proxy.protocols.v2.tensor_reading import read_inferences

from .decoding import DecodedMessage, request_in, response_in
from .streams import read_stream


def read(exchange: Exchange, call: Call, model: Model) -> Reading:
    """Read the inferences of a call."""
    if call.kind == "stream":
        return read_stream(exchange, model)
    request, answer = DecodedMessage(), DecodedMessage()
    if exchange.request.whole:
        request = request_in(exchange.request.bytes)
    if exchange.response.whole and exchange.response.parts:
        answer = response_in(exchange.response.bytes)
    return read_inferences(
        request.request,
        answer.response,
        model,
        request_bytes=exchange.request.bytes or None,
        response_bytes=exchange.response.bytes or None,
        problems=[
            describe_missing(exchange.request, "request"),
            request.problem,
            describe_missing(exchange.response, "response"),
            answer.problem,
        ],
        run=read_run(exchange.response_trailers),
    )


V2_GRPC: Final = Protocol(
    name="v2-grpc",
    transport="grpc",
    calls="`ModelInfer`, `ModelStreamInfer` of `inference.GRPCInferenceService`",
    datum="the same",
    answer="the same, in JSON",
    path=re.compile(r"/inference\.GRPCInferenceService/(?P<operation>ModelInfer|ModelStreamInfer)"),
    streams=("ModelStreamInfer",),
    read=read,
)

__all__ = ["V2_GRPC"]
