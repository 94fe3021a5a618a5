"""Reads a request of a stream with its answers: one inference."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Final, TypeAlias

from inference_store.grpc_messages import parsed
from inference_store.proxy.exchange import Exchange
from inference_store.proxy.protocols.problems import Problem, describe_missing
from inference_store.proxy.protocols.protocol import Model, Reading
from inference_store.proxy.protocols.tensors import merge
from inference_store.proxy.protocols.v2.tensor_reading import read_inferences

from .decoding import DecodedMessage, request_in, response_in, stream_response_in

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


# The message that answers a stream: ModelInferResponse of MLServer, ModelStreamInferResponse of
# Triton.
#
# Both answer the same method. Triton's has only the fields 1 and 2, a text and a message; in the
# other, these are its name and version, both texts, and its content follows.

Decode: TypeAlias = Callable[[bytes, str], DecodedMessage]
DIALECTS: Final[Mapping[str, Decode]] = {"mlserver": response_in, "triton": stream_response_in}


def find_dialect(answers: Iterable[bytes]) -> str:
    """Return the dialect of the first answer that shows it; if none does, both read the same."""
    return next((dialect for answer in answers if (dialect := _find_in(answer))), "mlserver")


def _find_in(answer: bytes) -> str | None:
    plain = parsed("inference.ModelInferResponse", answer)
    if plain is not None and (
        plain.id or plain.parameters or plain.outputs or plain.raw_output_contents
    ):
        return "mlserver"
    wrapped = parsed("inference.ModelStreamInferResponse", answer)
    if wrapped is not None and (wrapped.error_message or wrapped.HasField("infer_response")):
        return "triton"
    return None if plain is None or not plain.ByteSize() else "mlserver"
