"""The Open Inference Protocol (V2) over gRPC: messages, read as the tensors of V2 over REST."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from inference_store.grpc_messages import parsed
from inference_store.inference.events import CaptureSide
from inference_store.proxy.exchange import Exchange

from .protocol import (
    NAMES,
    Call,
    Model,
    Problem,
    Protocol,
    Reading,
    describe_missing,
    join_problems,
    unreadable,
)
from .tensor_reading import ParsedBody, read_inferences, read_run
from .tensors import InferRequest, InferResponse, Parameters, Tensor, Value, merge, parameter_text

# The field of a tensor's values, by its datatype; FP16 and unknown datatypes have only raw bytes.
_CONTENTS: Final[Mapping[str, str]] = {
    "BOOL": "bool_contents",
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
    "INT64": "int64_contents",
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents"),
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}
_SHARED_MEMORY: Final = "shared_memory_region"
"""Triton's parameter for a tensor whose bytes are not in the message."""


def request_in(written: bytes) -> ParsedBody:
    """Decode a ModelInferRequest."""
    what = NAMES["request"]
    read = parsed("inference.ModelInferRequest", written)
    if read is None:
        sentence = f"{what} is no ModelInferRequest"
        return ParsedBody(problem=unreadable(sentence, "request"))
    inputs, problem = _read_tensors(read.inputs, read.raw_input_contents, what, "request")
    request = InferRequest(inputs=inputs, **_read_head(read))
    return ParsedBody(request=request, problem=problem)


def response_in(
    written: bytes, what: str = NAMES["response"], name: str = "ModelInferResponse"
) -> ParsedBody:
    """Decode an answer; `what`: what it is called in a sentence; `name`: its message."""
    read, error = parsed(f"inference.{name}", written), None
    if read is None:
        return ParsedBody(problem=unreadable(f"{what} is no {name}", "response"))
    if name == "ModelStreamInferResponse":
        read, error = read.infer_response, read.error_message or None
    outputs, problem = _read_tensors(read.outputs, read.raw_output_contents, what, "response")
    response = InferResponse(outputs=outputs, error=error, **_read_head(read))
    return ParsedBody(response=response, problem=problem)


def _read_head(read: Any) -> dict[str, Any]:
    """Return what a request and an answer have beside tensors."""
    return {
        "model": read.model_name or None,
        "version": read.model_version or None,
        "id": read.id or None,
        "parameters": _read_parameters(read.parameters),
    }


def _read_tensors(
    tensors: Sequence[Any], raw: Sequence[bytes], what: str, side: CaptureSide
) -> tuple[Sequence[Tensor], Problem | None]:
    contents = assign_raw(tensors, raw)
    decoded = [
        _read_tensor(*read, at) for at, read in enumerate(zip(tensors, contents, strict=True))
    ]
    expected = sum(_has_raw(tensor, tensors, raw) for tensor in tensors)
    if raw and len(raw) != expected:
        sentence = f"{what} has {len(raw)} raw contents for {expected} tensors"
        return decoded, unreadable(sentence, side)
    return decoded, None


def assign_raw(tensors: Sequence[Any], raw: Sequence[bytes]) -> list[bytes | None]:
    """Return the raw contents of each tensor. They are in the order of the tensors; those in
    shared memory may be left out."""
    remaining = iter(raw)
    return [next(remaining, None) if _has_raw(tensor, tensors, raw) else None for tensor in tensors]


def contents_field(read: Any) -> str | None:
    """Return the field of a tensor's typed values: that of its datatype; if it is empty, any
    other."""
    own = _CONTENTS.get(read.datatype)
    names: Iterable[str] = (*([own] if own else []), *_CONTENTS.values())
    return next((name for name in names if getattr(read.contents, name)), None)


def _has_raw(tensor: Any, tensors: Sequence[Any], raw: Sequence[bytes]) -> bool:
    return len(raw) == len(tensors) or _SHARED_MEMORY not in tensor.parameters


def _read_tensor(read: Any, raw: bytes | None, position: int) -> Tensor:
    values: Sequence[Value] | None = None
    if raw is None and read.HasField("contents"):
        field = contents_field(read)
        values = list(getattr(read.contents, field)) if field else ()
    return Tensor(
        position=position,
        name=read.name,
        datatype=read.datatype,
        shape=tuple(read.shape),
        parameters=_read_parameters(read.parameters),
        raw=raw,
        values=values,
    )


def _read_parameters(read: Mapping[str, Any]) -> Parameters:
    """Return parameters as JSON; a value of an unknown kind is null."""
    parameters: dict[str, bytes] = {}
    for name, value in read.items():
        kind = value.WhichOneof("parameter_choice")
        parameters[name] = parameter_text(getattr(value, kind)) if kind else b"null"
    return parameters


_IN_DOUBT = Problem(
    "neither ids nor the order tell which answers of the stream are this request's",
    ("response", "not_divided"),
)


# The message that answers a stream: ModelInferResponse of MLServer, ModelStreamInferResponse of
# Triton.
#
# Both answer the same method. Triton's has only the fields 1 and 2, a text and a message; in the
# other, these are its name and version, both texts, and its content follows.

DIALECTS: Final = {"mlserver": "ModelInferResponse", "triton": "ModelStreamInferResponse"}


def find_dialect(answers: Iterable[bytes]) -> str:
    """Return the dialect of the first answer that shows it; if none does, both read the same."""
    return next((dialect for answer in answers if (dialect := _find_in(answer))), "mlserver")


def _find_in(answer: bytes) -> str | None:
    plain = parsed("inference.ModelInferResponse", answer)
    if plain and (plain.id or plain.parameters or plain.outputs or plain.raw_output_contents):
        return "mlserver"
    wrapped = parsed("inference.ModelStreamInferResponse", answer)
    if wrapped is not None and (wrapped.error_message or wrapped.HasField("infer_response")):
        return "triton"
    return None if plain is None or not plain.ByteSize() else "mlserver"


def read(exchange: Exchange, call: Call, model: Model) -> Reading:
    """Read the inferences of a call, or the one of a request of ModelStreamInfer, which has any
    number of answers."""
    sent, came, is_stream = exchange.request, exchange.response, call.kind == "stream"
    request = ParsedBody()
    if sent.parts if is_stream else sent.whole:
        request = request_in(sent.bytes)
    answers: list[ParsedBody] = []
    if is_stream:
        name = DIALECTS[model.dialect or find_dialect(came.parts)]
        answers = [response_in(part, f"answer {at}", name) for at, part in enumerate(came.parts)]
    elif came.whole and came.parts:
        answers = [response_in(came.bytes)]
    responses = [answer.response for answer in answers if answer.response is not None]
    reading = read_inferences(
        replace(request, whole=sent.bytes or None),
        ParsedBody(
            response=merge(responses) if responses else None,
            whole=came.bytes or None,
            problem=join_problems(answer.problem for answer in answers),
        ),
        model,
        stream=is_stream,
        problems=[
            describe_missing(sent, "request"),
            describe_missing(came, "response"),
            _IN_DOUBT if exchange.is_matched_in_doubt else None,
        ],
        run=None if is_stream else read_run(exchange.response_trailers),
    )
    # the id may be another request's
    return replace(reading, response_id=None) if exchange.is_matched_in_doubt else reading


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
