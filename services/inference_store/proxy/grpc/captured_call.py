"""A captured exchange: recorded while it passes, handed over when it ends."""

import asyncio
from base64 import b64encode
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias

import grpc
from grpc import StatusCode

from inference_store.proxy.capture import Reservation
from inference_store.proxy.exchange import Body, Exchange, Headers
from inference_store.proxy.routing import Route

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
    pairs = ((key, value) for key, value in metadata or ())
    return tuple(pair for pair in pairs if pair[0] not in _RESERVED and pair[0][:1] != ":")


def metadata_as_headers(metadata: Metadata | None) -> Headers:
    """Return metadata as headers: binary values (names end in `-bin`) in Base64, as on the wire."""
    return tuple((key, _text(value)) for key, value in metadata or ())


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else b64encode(value).rstrip(b"=").decode()


FindRoute: TypeAlias = Callable[[str, str | None, str | None], Route]
"""Returns the route of a method, a model and a version (None if the request does not name it)."""


FindTarget: TypeAlias = Callable[[bytes], Route | None]
"""Returns the route by a request's message; None if no upstream serves the model."""


class CapturedExchange:
    """A request and its answers, with the memory that is reserved for them."""

    def __init__(
        self, reservation: Reservation, target: Route, exchange: Exchange, request: bytes | None
    ) -> None:
        """`request`: its first message; None if it is not known."""
        self._reservation, self._target, self.exchange = reservation, target, exchange
        self._requests: list[bytes] = []
        self._answers: list[bytes] = []
        exchange.request, exchange.response = Body(parts=self._requests), Body(parts=self._answers)
        if request is not None:
            self._keep(exchange.request, self._requests, request, room=not reservation.refused)

    def _keep(self, body: Body, parts: list[bytes], message: bytes, *, room: bool) -> None:
        """Count a message, and keep it if there is room for it, and was for all before."""
        body.size += len(message)
        body.whole = room
        if room:
            parts.append(message)

    def add_request(self, message: bytes) -> None:
        """Add a message of the request."""
        body = self.exchange.request
        room = body.whole and self._reservation.reserve_more(len(message))
        self._keep(body, self._requests, message, room=room)

    def reserve(self, size: int) -> bool:
        """Reserve memory for an answer that may belong to this exchange."""
        return self._reservation.reserve_more(size)

    def add_answer(self, message: bytes, *, is_reserved: bool = False) -> None:
        """Add a message of the answer; `is_reserved`: there is room for it already."""
        now = datetime.now(UTC)
        self.exchange.responded_at = self.exchange.responded_at or now
        self.exchange.finished_at = now
        body = self.exchange.response
        room = body.whole and (is_reserved or self._reservation.reserve_more(len(message)))
        self._keep(body, self._answers, message, room=room)

    def hand_over(self) -> None:
        """Hand the exchange over to capture, as it is now."""
        self._reservation.finish(self.exchange, self._target)


Context: TypeAlias = "grpc.aio.ServicerContext[bytes, bytes]"
UpstreamCall: TypeAlias = Any
"""A call of grpc.aio, of either arity."""


async def fail(context: Context) -> None:
    """Send the status of a call with one answer, if it failed: returning would send an empty answer
    before it. Does not return then. Raises CancelledError if the caller is gone."""
    code: Any = context.code()
    if code:
        with cancelled_if_gone():
            await context.abort(code)


@contextmanager
def cancelled_if_gone() -> Iterator[None]:
    """Raise CancelledError if the caller is gone: grpc notices that only when it writes, and would
    log its own error as a fault of ours."""
    try:
        yield
    except grpc.aio.AbortError:  # the status is sent
        raise
    except grpc.aio.BaseError as exc:
        raise asyncio.CancelledError from exc


def refuse(context: Context, target: Route | None) -> None:
    """Set the status of a call that is not forwarded."""
    if target is None:
        context.set_code(StatusCode.NOT_FOUND)
        context.set_details("no upstream of this proxy serves that model")
    else:
        context.set_code(StatusCode.PERMISSION_DENIED)
        context.set_details("Shutdown is not passed on: the proxy's configuration can allow it")


def number(code: StatusCode) -> int:
    """Return the code on the wire."""
    value: int = code.value[0]
    return value


# Methods of known model servers, and the single fields of messages that forwarding needs: the
# model's name, the id, and the end of a request's answers.
#
# Other fields are skipped by their lengths: the contents of a tensor are never read.

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
class AnswerHead:
    """The id of an answer; empty if it has none."""

    id: str = ""
    is_last: bool | None = None
    """Whether its request is answered now; None if it does not say."""


def read_request(message: bytes) -> tuple[str, bool]:
    """Return the id of a ModelInferRequest, and whether it asks the server to mark the end of its
    answers; of any bytes."""
    return _read_id(message), _read_mark(message, _ASKS_FOR_FINAL) is True


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
