"""Methods of known model servers, and the single fields of messages that forwarding needs: the
model's name, the id, and the end of a request's answers.

Other fields are skipped by their lengths: the contents of a tensor are never read.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

Message: TypeAlias = bytes | memoryview
MOST_FIELDS: Final = 1_000
"""The most top-level fields that are read: all known writers put the names first."""
_VARINT, _EIGHT_BYTES, _LENGTH, _FOUR_BYTES = 0, 1, 2, 5
_LONGEST_VARINT: Final = 10


def read_texts(message: Message, numbers: Collection[int]) -> Mapping[int, str]:
    """Return the texts of these fields; of a repeated field the last one, as every parser does.

    A field that is missing, empty or not UTF-8 is left out. If the message is broken, only
    the fields before the break are read.
    """
    values: dict[int, Message] = {}
    for number, value in fields_of(message):
        if number in numbers:
            values[number] = value
    return {number: text for number, value in values.items() if (text := _decode(value))}


def _decode(value: Message) -> str | None:
    try:
        return str(value, "utf-8")
    except UnicodeDecodeError:
        return None


def fields_of(message: Message) -> Iterator[tuple[int, memoryview]]:
    """Yield the number and the content of each length-delimited field; others are skipped."""
    message = memoryview(message)
    at = 0
    for _ in range(MOST_FIELDS):
        if at >= len(message):
            return
        tag, at = _read_varint(message, at)
        kind = tag & 7
        if at < 0 or kind not in {_VARINT, _EIGHT_BYTES, _LENGTH, _FOUR_BYTES}:
            return
        start, end = _find_span(message, at, kind)
        if not 0 <= end <= len(message):
            return
        if kind == _LENGTH:
            yield tag >> 3, message[start:end]
        at = end


def _find_span(message: Message, at: int, kind: int) -> tuple[int, int]:
    """Return the start and the end of a field's value; the end is -1 if it is broken."""
    if kind == _LENGTH:
        length, start = _read_varint(message, at)
        return start, start + length if start >= 0 else -1
    if kind == _VARINT:
        return at, _read_varint(message, at)[1]
    return at, at + (8 if kind == _EIGHT_BYTES else 4)


def _read_varint(message: Message, at: int) -> tuple[int, int]:
    """Return a number and the position after it; -1 if it is cut off or too long."""
    value = 0
    for index, byte in enumerate(message[at : at + _LONGEST_VARINT]):
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
_REPOSITORY: Final = "/inference.model_repository.ModelRepositoryService/"
_OMI: Final = "/ModzyModel/"
_OF_A_SERVER: Final = Method()
_OF_A_MODEL: Final = Method(model=1, version=2)
_OF_A_REPOSITORY: Final = {
    "RepositoryIndex": _OF_A_SERVER,
    "RepositoryModelLoad": Method(model=2),
    "RepositoryModelUnload": Method(model=2),
}
_OF_V2: Final = {
    "ServerLive": _OF_A_SERVER,
    "ServerReady": _OF_A_SERVER,
    "ServerMetadata": _OF_A_SERVER,
    "ModelReady": _OF_A_MODEL,
    "ModelMetadata": _OF_A_MODEL,
    "ModelInfer": _OF_A_MODEL,
    "ModelStreamInfer": Method(unary=False, model=1, version=2),
    # Triton's own
    "ModelConfig": _OF_A_MODEL,
    "ModelStatistics": _OF_A_MODEL,
    "TraceSetting": Method(model=2),
}

METHODS: Final[Mapping[str, Method]] = {
    **{_V2 + name: method for name, method in (_OF_V2 | _OF_A_REPOSITORY).items()},
    **{_REPOSITORY + name: method for name, method in _OF_A_REPOSITORY.items()},
    **{_OMI + name: _OF_A_SERVER for name in ("Status", "Run", "Shutdown")},
}
UNKNOWN: Final = Method(unary=False)
STATUS: Final = _OMI + "Status"
RUN: Final = _OMI + "Run"
SHUTDOWN: Final = _OMI + "Shutdown"


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
_FINAL: Final = "triton_final_response"
_ASKS_FOR_FINAL: Final = "triton_enable_empty_final_response"
_TRUE, _FALSE = b"\x08\x01", b"\x08\x00"
"""An InferParameter that holds a boolean."""


@dataclass(frozen=True, slots=True)
class RequestHead:
    """The id of a request, and whether it asks the server to mark the end of its answers."""

    id: str = ""
    asks_for_end: bool = False


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """The id of an answer; empty if it has none."""

    id: str = ""
    is_last: bool | None = None
    """Whether its request is answered now; None if it does not say."""


def read_request(message: bytes) -> RequestHead:
    """Read the head of a ModelInferRequest; any bytes."""
    return RequestHead(_read_id(message), _read_mark(message, _ASKS_FOR_FINAL) is True)


def read_answer(message: bytes, dialect: str | None) -> AnswerHead:
    """Read the head of an answer of MLServer, or of Triton if it has only the fields of its
    message; any bytes. An error in Triton's message ends the request."""
    answer: Message = message
    is_error = False
    fields = dict(fields_of(message))
    if dialect == "triton" or (dialect is None and fields.keys() <= {_ERROR, _INFER_RESPONSE}):
        is_error = bool(fields.get(_ERROR))
        answer = fields.get(_INFER_RESPONSE, memoryview(b""))
    return AnswerHead(_read_id(answer), True if is_error else _read_mark(answer, _FINAL))


def _read_id(message: Message) -> str:
    return read_texts(message, {_ID}).get(_ID, "")[:_LONGEST_ID]


def _read_mark(message: Message, name: str) -> bool | None:
    """Return a parameter that is a boolean; None if there is none."""
    mark = None
    for number, entry in fields_of(message):
        if number == _PARAMETERS and read_texts(entry, {1}).get(1) == name:
            value = bytes(dict(fields_of(entry)).get(2, b""))
            mark = {_TRUE: True, _FALSE: False}.get(value, mark)
    return mark
