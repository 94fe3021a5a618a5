"""What forwarding reads of a gRPC call: the metadata to pass on, its method, and the few fields of
messages that it needs: the model's name, the id, and the end of a request's answers.

Other fields are skipped by their lengths: the contents of a tensor are never read.
"""

import asyncio
from base64 import b64encode
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, NoReturn, TypeAlias

import grpc
from grpc import StatusCode

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


Message: TypeAlias = bytes | memoryview
MOST_FIELDS: Final = 1_000
"""The most top-level fields that are read: all known writers put the names first."""
_VARINT, _LENGTH = 0, 2
_FIXED: Final = {1: 8, 5: 4}
_LONGEST_VARINT: Final = 10


def read_texts(message: Message, numbers: Collection[int]) -> Mapping[int, str]:
    """Return the texts of these fields; of a repeated field the last one, as every parser does.

    A field that is missing, empty or not UTF-8 is left out. If the message is broken, only
    the fields before the break are read.
    """
    texts: dict[int, str] = {}
    for number, value in dict(fields_of(message)).items():
        if number in numbers and value:
            with suppress(UnicodeDecodeError):
                texts[number] = str(value, "utf-8")
    return texts


def fields_of(message: Message) -> Iterator[tuple[int, memoryview]]:
    """Yield the number and the content of each length-delimited field; others are skipped."""
    message = memoryview(message)
    end = 0
    for _ in range(MOST_FIELDS):
        tag, start = _read_varint(message, end)
        kind = tag & 7
        if kind == _LENGTH:
            size, start = _read_varint(message, start)
            end = start + size
        elif kind == _VARINT:
            end = _read_varint(message, start)[1]
        elif kind in _FIXED:
            end = start + _FIXED[kind]
        else:
            return
        if start < 0 or not 0 <= end <= len(message):
            return
        if kind == _LENGTH:
            yield tag >> 3, message[start:end]


def _read_varint(message: memoryview, at: int) -> tuple[int, int]:
    """Return a number and the position after it; -1 if it is cut off or too long."""
    value = 0
    for index, byte in enumerate(message[at : at + _LONGEST_VARINT] if at >= 0 else b""):
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return value, at + index + 1
    return 0, -1


@dataclass(frozen=True, slots=True)
class Method:
    """A known method. Others are forwarded as streams both ways, which carry every arity."""

    unary: bool = True
    model: int | None = None
    """The number of the request's field that names the model; None if there is none."""
    version: int | None = None


_V2: Final = "/inference.GRPCInferenceService/"
_OMI: Final = "/ModzyModel/"
UNKNOWN: Final = Method(unary=False)
STATUS, SHUTDOWN = f"{_OMI}Status", f"{_OMI}Shutdown"
_OF_A_REPOSITORY: Final = {
    "RepositoryIndex": Method(),
    "RepositoryModelLoad": Method(model=2),
    "RepositoryModelUnload": Method(model=2),
}
_OF_A_SERVER: Final = ("ServerLive", "ServerReady", "ServerMetadata")
# ModelConfig and ModelStatistics are Triton's own
_OF_A_MODEL: Final = ("Ready", "Metadata", "Infer", "Config", "Statistics")
METHODS: Final[Mapping[str, Method]] = {
    **{f"{_V2}{name}": Method() for name in _OF_A_SERVER},
    **{f"{_V2}Model{name}": Method(model=1, version=2) for name in _OF_A_MODEL},
    f"{_V2}ModelStreamInfer": Method(unary=False, model=1, version=2),
    f"{_V2}TraceSetting": Method(model=2),
    **{
        f"{service}{name}": method
        for service in (_V2, "/inference.model_repository.ModelRepositoryService/")
        for name, method in _OF_A_REPOSITORY.items()
    },
    **{path: Method() for path in (STATUS, f"{_OMI}Run", SHUTDOWN)},
}


def read_names(method: Method, message: bytes) -> tuple[str | None, str | None]:
    """Return the model and the version that a request names; None for one that it does not name."""
    if method.model is None:
        return None, None
    values = read_texts(message, {method.model, method.version or method.model})
    return values.get(method.model), values.get(method.version) if method.version else None


_ID: Final = 3
_PARAMETERS: Final = 4
"""The same fields in ModelInferRequest and ModelInferResponse."""
_ERROR, _INFER_RESPONSE = 1, 2
"""All fields of Triton's ModelStreamInferResponse."""
_LONGEST_ID: Final = 256
_BOOLEANS: Final = {b"\x08\x01": True, b"\x08\x00": False}
"""As an InferParameter holds them."""


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """The id of an answer; empty if it has none."""

    id: str = ""
    is_last: bool | None = None
    """Whether its request is answered now; None if it does not say."""


def read_request(message: bytes) -> tuple[str, bool]:
    """Return the id of a ModelInferRequest, and whether it asks the server to mark the end of its
    answers; of any bytes."""
    return _read_id(message), _read_mark(message, "triton_enable_empty_final_response") is True


def read_answer(message: bytes, dialect: str | None) -> AnswerHead:
    """Read the head of an answer of MLServer, or of Triton if it has only the fields of its
    message; any bytes. An error in Triton's message ends the request."""
    answer: Message = message
    fields = dict(fields_of(message))
    is_error = False
    if dialect == "triton" or (dialect is None and fields.keys() <= {_ERROR, _INFER_RESPONSE}):
        is_error = bool(fields.get(_ERROR))
        answer = fields.get(_INFER_RESPONSE, b"")
    return AnswerHead(_read_id(answer), is_error or _read_mark(answer, "triton_final_response"))


def _read_id(message: Message) -> str:
    return read_texts(message, {_ID}).get(_ID, "")[:_LONGEST_ID]


def _read_mark(message: Message, name: str) -> bool | None:
    """Return a parameter that is a boolean; None if there is none."""
    mark = None
    for number, entry in fields_of(message):
        if number == _PARAMETERS and read_texts(entry, {1}).get(1) == name:
            mark = _BOOLEANS.get(bytes(dict(fields_of(entry)).get(2, b"")), mark)
    return mark
