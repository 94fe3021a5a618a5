"""What forwarding reads of a gRPC call: the metadata to pass on, its method, and of messages the
model's name, the id, and the end of a request's answers. The contents of a tensor are never read.
"""

import asyncio
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn, TypeAlias

import grpc
from grpc import StatusCode

from inference_store.grpc_messages import message, parsed
from inference_store.proxy.exchange import Headers

Context: TypeAlias = "grpc.aio.ServicerContext[bytes, bytes]"
Metadata: TypeAlias = Iterable[tuple[str, str | bytes]]
# gRPC's own, which each side creates: those of a connection, or those that would conflict with its
# own.
_RESERVED: Final = frozenset(
    {"connection", "content-type", "host", "proxy-connection", "te", "user-agent"}
    | {"grpc-accept-encoding", "grpc-encoding", "grpc-message", "grpc-message-type"}
    | {"grpc-previous-rpc-attempts", "grpc-retry-pushback-ms", "grpc-status", "grpc-timeout"}
)


def select_metadata(metadata: Metadata | None) -> tuple[tuple[str, str | bytes], ...]:
    """Return the metadata to forward, in either direction: names and values unchanged, in order."""
    return tuple(
        (key, value)
        for key, value in metadata or ()
        if key not in _RESERVED and not key.startswith(":")
    )


def metadata_as_headers(metadata: Metadata | None) -> Headers:
    """Return metadata as headers: binary values (names end in `-bin`) in Base64, as on the wire."""
    return tuple(
        (key, value if isinstance(value, str) else b64encode(value).rstrip(b"=").decode())
        for key, value in metadata or ()
    )


async def abort(context: Context, code: StatusCode, details: str = "") -> NoReturn:
    """End a call with a status; returning would send an empty answer before it. Raises
    CancelledError if the caller is gone: gRPC would log its own error as a fault of ours."""
    try:
        await context.abort(code, details)
    except grpc.aio.AbortError:  # the status is sent
        raise
    except grpc.aio.BaseError as exc:
        raise asyncio.CancelledError from exc


# Known methods, and the numbers of the fields in which their requests name model and version. They
# have one message each way, except STREAM; others are forwarded as streams both ways, which carry
# every arity.
_V2: Final = "/inference.GRPCInferenceService/"
_OMI: Final = "/ModzyModel/"
STREAM: Final = f"{_V2}ModelStreamInfer"
STATUS, SHUTDOWN = f"{_OMI}Status", f"{_OMI}Shutdown"
_OF_A_SERVER: Final = ("ServerLive", "ServerReady", "ServerMetadata")
# ModelConfig, ModelStatistics and TraceSetting are Triton's own
_OF_A_MODEL: Final = ("Ready", "Metadata", "Infer", "StreamInfer", "Config", "Statistics")
METHODS: Final[Mapping[str, Sequence[int]]] = {
    **dict.fromkeys((f"{_OMI}Run", STATUS, SHUTDOWN, *(_V2 + it for it in _OF_A_SERVER)), ()),
    **{f"{_V2}Model{name}": (1, 2) for name in _OF_A_MODEL},
    f"{_V2}TraceSetting": (2,),
    **{
        f"{service}Repository{name}": numbers
        for service in (_V2, "/inference.model_repository.ModelRepositoryService/")
        for name, numbers in (("Index", ()), ("ModelLoad", (2,)), ("ModelUnload", (2,)))
    },
}


def read_names(path: str, written: bytes) -> tuple[str | None, str | None]:
    """Return the model and the version that a request names; None for one that it does not name."""
    numbers = METHODS.get(path, ())
    fields = _list_fields(memoryview(written)) if numbers else ()
    found = {number: bytes(content) for number, _, content in fields if number in numbers}
    names = [found.get(number, b"").decode("utf-8", "replace") or None for number in numbers]
    model, version = (*names, None, None)[:2]
    return model, version


_LONGEST_ID: Final = 256


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """The id of an answer; empty if it has none."""

    id: str = ""
    is_last: bool | None = None
    """Whether its request is answered now; None if it does not say."""


def read_request(written: bytes) -> tuple[str, bool]:
    """Return the id of a ModelInferRequest, and whether it asks the server to mark the end of its
    answers; of any bytes."""
    read = _read_head(memoryview(written))
    return read.id[:_LONGEST_ID], _read_mark(read, "triton_enable_empty_final_response") is True


def read_answer(written: bytes, dialect: str | None) -> AnswerHead:
    """Read the head of an answer of MLServer, or of Triton if it has only the fields of its
    message, a text and an answer; any bytes. An error in Triton's message ends the request."""
    answer, is_error = memoryview(written), False
    fields = {number: content for number, _, content in _list_fields(answer)}
    if dialect == "triton" or (dialect is None and fields.keys() <= {1, 2}):
        answer, is_error = fields.get(2, answer[:0]), bool(fields.get(1))
    read = _read_head(answer)
    return AnswerHead(read.id[:_LONGEST_ID], is_error or _read_mark(read, "triton_final_response"))


def _read_mark(read: Any, name: str) -> bool | None:
    mark = read.parameters.get(name)
    return mark.bool_param if mark is not None and mark.HasField("bool_param") else None


# The contents of tensors are skipped by their lengths, of requests and answers alike: parsed, they
# could take many times their bytes in the process that serves.

_PARAMETERS: Final = 4
_MOST_FIELDS: Final = 1_000
"""The most fields that are looked at: all known writers put the names first."""
_LENGTH, _SIZES = 2, {1: 8, 5: 4}
_LONGEST_VARINT: Final = 10


def _read_head(written: memoryview) -> Any:
    """Read the fields before the tensors, the id and the parameters among them, as a message; an
    empty one if they cannot be read."""
    head = b"".join(raw for number, raw, _ in _list_fields(written) if number <= _PARAMETERS)
    name = "inference.ModelInferRequest"
    return parsed(name, head) or message(name)()


def _list_fields(written: memoryview) -> Iterator[tuple[int, memoryview, memoryview]]:
    """Yield the number of each field with a length, all of it, and its content; up to a break."""
    end = 0
    for _ in range(_MOST_FIELDS):
        begin = end
        tag, start = _read_varint(written, begin)
        size, start = _read_varint(written, start) if tag & 7 in (0, _LENGTH) else (0, start)
        end = start + (size if tag & 7 == _LENGTH else _SIZES.get(tag & 7, 0))
        if start < 0 or end > len(written) or tag & 7 not in (0, _LENGTH, *_SIZES):
            return
        if tag & 7 == _LENGTH:
            yield tag >> 3, written[begin:end], written[start:end]


def _read_varint(written: memoryview, at: int) -> tuple[int, int]:
    """Return a number and the position after it; -1 if it is cut off or too long."""
    value = 0
    for index, byte in enumerate(written[at : at + _LONGEST_VARINT] if at >= 0 else b""):
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return value, at + index + 1
    return 0, -1
