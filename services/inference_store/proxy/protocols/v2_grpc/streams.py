"""Reads a request of a stream with its answers: one inference."""

from dataclasses import replace

from inference_store.proxy.exchange import Exchange
from inference_store.proxy.protocols.problems import Problem, describe_missing
from inference_store.proxy.protocols.protocol import Model, Reading
from inference_store.proxy.protocols.v2.tensor_reading import read_inferences
from inference_store.proxy.protocols.v2.tensors import merge

from .decoding import DecodedMessage, request_in
from .dialects import DIALECTS, find_dialect

_IN_DOUBT = Problem(
    "neither ids nor the order tell which answers of the stream are this request's",
    ("response", "not_divided"),
)


def read_stream(exchange: Exchange, model: Model) -> Reading:
    """Read the inference of a request of ModelStreamInfer, which has any number of answers."""
    decode = DIALECTS.get(model.dialect or "") or DIALECTS[find_dialect(exchange.response.parts)]
    request = DecodedMessage()
    if exchange.request.parts:
        request = request_in(exchange.request.bytes)
    decoded = [
        decode(part, f"answer {number}") for number, part in enumerate(exchange.response.parts)
    ]
    answers = [message.response for message in decoded if message.response is not None]
    reading = read_inferences(
        request.request,
        merge(answers) if answers else None,
        model,
        stream=True,
        request_bytes=exchange.request.bytes or None,
        response_bytes=exchange.response.bytes or None,
        problems=[
            request.problem,
            *(message.problem for message in decoded),
            describe_missing(exchange.request, "request"),
            describe_missing(exchange.response, "response"),
            _IN_DOUBT if exchange.is_matched_in_doubt else None,
        ],
    )
    # the id may be another request's
    return replace(reading, response_id=None) if exchange.is_matched_in_doubt else reading
