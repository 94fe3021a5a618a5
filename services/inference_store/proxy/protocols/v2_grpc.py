"""The Open Inference Protocol (V2) over gRPC: messages, read as the tensors of V2 over REST."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Any, Final

from inference_store.grpc_messages import parsed
from inference_store.inference.events import CaptureSide
from inference_store.inference.stored_requests import encoded
from inference_store.proxy.exchange import Exchange

from .documents import Document, read_message
from .protocol import NAMES, Call, Model, Problem, Protocol, Reading, join_problems
from .tensor_datum import values_json
from .tensor_reading import read_inferences, read_run
from .tensors import Content, Tensor, merge, parameter_text

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


def request_in(written: bytes) -> Document:
    """Decode a ModelInferRequest."""
    return _decode(written, "request", NAMES["request"], "ModelInferRequest")


def response_in(
    written: bytes, what: str = NAMES["response"], name: str = "ModelInferResponse"
) -> Document:
    """Decode an answer; `what`: what it is called in a sentence; `name`: its message."""
    return _decode(written, "response", what, name)


def _decode(written: bytes, side: CaptureSide, what: str, name: str) -> Document:
    document = read_message(written, side, f"inference.{name}", what)
    read, error = document.value, None
    if read is None:
        return document
    if name == DIALECTS["triton"]:
        read, error = read.infer_response, read.error_message or None
    tensors, raw = (
        (read.inputs, read.raw_input_contents)
        if side == "request"
        else (read.outputs, read.raw_output_contents)
    )
    content = Content(
        model=read.model_name or None,
        version=read.model_version or None,
        id=read.id or None,
        parameters=_read_parameters(read.parameters),
        tensors=list(map(_read_tensor, tensors, count(), assign_raw(tensors, raw))),
        error=error,
    )
    expected = sum(_has_raw(tensor, tensors, raw) for tensor in tensors)
    sentence = f"{what} has {len(raw)} raw contents for {expected} tensors"
    problem = Problem.unreadable(sentence, side) if raw and len(raw) != expected else None
    return replace(document, value=content, problem=problem)


def _read_tensor(read: Any, position: int, raw: bytes | None) -> Tensor:
    tensor = Tensor(
        position=position,
        name=read.name,
        datatype=read.datatype,
        shape=tuple(read.shape),
        parameters=_read_parameters(read.parameters),
        raw=raw,
    )
    if raw is not None or not read.HasField("contents"):
        return tensor
    field = contents_field(read)
    values = getattr(read.contents, field) if field else ()
    is_right = field is not None and field == _CONTENTS.get(read.datatype)
    packed = encoded(read.datatype, values) if is_right else None
    if packed is None:  # of another datatype: they are only kept
        return replace(tensor, data=values_json(values))
    return replace(tensor, raw=packed, is_typed=True)


def assign_raw(tensors: Sequence[Any], raw: Sequence[bytes]) -> list[bytes | None]:
    """Return the raw contents of each tensor, in order; those in shared memory may have none."""
    remaining = iter(raw)
    return [next(remaining, None) if _has_raw(tensor, tensors, raw) else None for tensor in tensors]


def contents_field(read: Any) -> str | None:
    """Return the field of a tensor's typed values: that of its datatype, else any other."""
    names = (_CONTENTS.get(read.datatype, "bool_contents"), *_CONTENTS.values())
    return next((name for name in names if getattr(read.contents, name)), None)


def _has_raw(tensor: Any, tensors: Sequence[Any], raw: Sequence[bytes]) -> bool:
    return len(raw) == len(tensors) or _SHARED_MEMORY not in tensor.parameters


def _read_parameters(read: Mapping[str, Any]) -> dict[str, bytes]:
    """Return parameters as JSON; a value of an unknown kind is null."""
    kinds = {name: value.WhichOneof("parameter_choice") for name, value in read.items()}
    values = {name: getattr(read[name], kind) if kind else None for name, kind in kinds.items()}
    return {name: parameter_text(value) for name, value in values.items()}


# The message that answers a stream: ModelInferResponse of MLServer, ModelStreamInferResponse of
# Triton.
#
# Both answer the same method. Triton's has only the fields 1 and 2, a text and a message; in the
# other, these are its name and version, both texts, and its content follows.

DIALECTS: Final = {"mlserver": "ModelInferResponse", "triton": "ModelStreamInferResponse"}


def find_dialect(answers: Iterable[bytes]) -> str:
    """Return the dialect of the first answer that shows it; if none does, both read the same."""
    for answer in answers:
        plain = parsed("inference.ModelInferResponse", answer)
        if plain and (plain.id or plain.parameters or plain.outputs or plain.raw_output_contents):
            break
        wrapped = parsed("inference.ModelStreamInferResponse", answer)
        if wrapped is not None and (wrapped.error_message or wrapped.HasField("infer_response")):
            return "triton"
        if plain is not None and plain.ByteSize():
            break
    return "mlserver"


_IN_DOUBT: Final = Problem(
    "neither ids nor the order tell which answers of the stream are this request's",
    ("response", "not_divided"),
)


def read(exchange: Exchange, call: Call, model: Model) -> Reading:
    """Read the inferences of a call; one of a stream's request, which has any number of answers."""
    sent, came, is_stream = exchange.request, exchange.response, call.kind == "stream"
    request = Document("request", sent.bytes)
    if sent.parts if is_stream else sent.whole:
        request = request_in(sent.bytes)
    answers: list[Document] = []
    if is_stream:
        name = DIALECTS[model.dialect or find_dialect(came.parts)]
        answers = [response_in(part, f"answer {at}", name) for at, part in enumerate(came.parts)]
    elif came.whole and came.parts:
        answers = [response_in(came.bytes)]
    contents = [answer.value for answer in answers if answer.value is not None]
    merged = merge(contents) if contents else None
    in_doubt = exchange.is_matched_in_doubt
    missing = [Problem.missing(sent, "request"), Problem.missing(came, "response")]
    problem = join_problems(answer.problem for answer in answers)
    reading = read_inferences(
        request,
        Document("response", came.bytes, merged, problem),
        model,
        stream=is_stream,
        problems=[*missing, _IN_DOUBT if in_doubt else None],
        run=None if is_stream else read_run(exchange.response_trailers),
    )
    # the id may be another request's
    return replace(reading, response_id=None) if in_doubt else reading


V2_GRPC: Final = Protocol(
    name="v2-grpc",
    transport="grpc",
    path=re.compile(r"/inference\.GRPCInferenceService/(?P<operation>ModelInfer|ModelStreamInfer)"),
    streams=("ModelStreamInfer",),
    read=read,
)
