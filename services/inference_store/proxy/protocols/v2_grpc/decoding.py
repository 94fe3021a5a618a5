"""Messages of V2 over gRPC as the tensors that both transports share."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from inference_store.grpc_messages import parsed
from inference_store.inference.events import CaptureSide
from inference_store.proxy.protocols.problems import NAMES, Problem
from inference_store.proxy.protocols.v2.tensors import (
    InferRequest,
    InferResponse,
    Parameters,
    Tensor,
    Value,
    parameter_text,
)

# Where a tensor's values stand, by its datatype; FP16 and what is unknown have raw bytes only.
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
"""Triton's parameter of a tensor whose bytes are not in the message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """What a message held; both None: it could not be read."""

    request: InferRequest | None = None
    response: InferResponse | None = None
    problem: Problem | None = None


def request_in(written: bytes, what: str = NAMES["request"]) -> Decoded:
    """A ModelInferRequest."""
    read = parsed("inference.ModelInferRequest", written)
    if read is None:
        return Decoded(problem=_unread(f"{what} is no ModelInferRequest", "request"))
    inputs, problem = _tensors(read.inputs, read.raw_input_contents, what, "request")
    request = InferRequest(
        model=read.model_name or None,
        version=read.model_version or None,
        id=read.id or None,
        parameters=_parameters(read.parameters),
        inputs=inputs,
    )
    return Decoded(request=request, problem=problem)


def response_in(written: bytes, what: str = NAMES["response"]) -> Decoded:
    """A ModelInferResponse."""
    read = parsed("inference.ModelInferResponse", written)
    if read is None:
        return Decoded(problem=_unread(f"{what} is no ModelInferResponse", "response"))
    return _response(read, what, error=None)


def stream_response_in(written: bytes, what: str) -> Decoded:
    """A ModelStreamInferResponse: Triton's."""
    read = parsed("inference.ModelStreamInferResponse", written)
    if read is None:
        return Decoded(problem=_unread(f"{what} is no ModelStreamInferResponse", "response"))
    return _response(read.infer_response, what, error=read.error_message or None)


def _response(read: Any, what: str, *, error: str | None) -> Decoded:
    outputs, problem = _tensors(read.outputs, read.raw_output_contents, what, "response")
    response = InferResponse(
        model=read.model_name or None,
        version=read.model_version or None,
        id=read.id or None,
        parameters=_parameters(read.parameters),
        outputs=outputs,
        error=error,
    )
    return Decoded(response=response, problem=problem)


def _tensors(
    tensors: Sequence[Any], raw: Sequence[bytes], what: str, side: CaptureSide
) -> tuple[Sequence[Tensor], Problem | None]:
    """Raw contents belong to the tensors in order; those in shared memory may be left out."""
    here = [len(raw) == len(tensors) or _has_bytes_here(each) for each in tensors]
    left = iter(raw)
    contents = [next(left, None) if each else None for each in here]
    found = [_tensor(read, content) for read, content in zip(tensors, contents, strict=True)]
    if raw and len(raw) != sum(here):
        sentence = f"{what} has {len(raw)} raw contents for {sum(here)} tensors"
        return found, _unread(sentence, side)
    return found, None


def _unread(sentence: str, side: CaptureSide) -> Problem:
    return Problem(sentence, (side, "unreadable"))


def _has_bytes_here(tensor: Any) -> bool:
    return _SHARED_MEMORY not in tensor.parameters


def _tensor(read: Any, raw: bytes | None) -> Tensor:
    return Tensor(
        name=read.name,
        datatype=read.datatype,
        shape=tuple(read.shape),
        parameters=_parameters(read.parameters),
        raw=raw,
        values=_values(read) if raw is None and read.HasField("contents") else None,
    )


def _values(read: Any) -> Sequence[Value]:
    """Those of the datatype; where there are none, those that are there."""
    own = _CONTENTS.get(read.datatype)
    names: Iterable[str] = (*([own] if own else []), *_CONTENTS.values())
    filled = (getattr(read.contents, name) for name in names)
    return list(next((each for each in filled if each), ()))


def _parameters(read: Mapping[str, Any]) -> Parameters:
    """One whose value is of no known kind is null."""
    found: dict[str, bytes] = {}
    for name, value in read.items():
        kind = value.WhichOneof("parameter_choice")
        found[name] = parameter_text(getattr(value, kind)) if kind else b"null"
    return found
