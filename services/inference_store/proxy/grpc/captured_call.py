"""A captured exchange: recorded while it passes, handed over when it ends."""

import asyncio
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias

import grpc
from grpc import StatusCode

from inference_store.grpc_messages import parsed
from inference_store.proxy.capture import Captures, Reservation, head_size
from inference_store.proxy.exchange import Body, Exchange, Headers
from inference_store.proxy.protocols.v2_grpc import find_dialect
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


IdHeader: TypeAlias = tuple[str, str]


def id_trailers(id_header: IdHeader) -> tuple[IdHeader, ...]:
    """Return the trailer of an id; none if it cannot be one: outside HTTP an id may be any text."""
    _, value = id_header
    return (id_header,) if value.isascii() and value.isprintable() else ()


class CapturedExchange:
    """A request and its answers, with the memory that is reserved for them."""

    def __init__(
        self, reservation: Reservation, target: Route, exchange: Exchange, id_header: IdHeader
    ) -> None:
        self._reservation, self._target = reservation, target
        self.exchange, self.id_header = exchange, id_header
        self._requests: list[bytes] = []
        self._answers: list[bytes] = []
        exchange.request, exchange.response = Body(parts=self._requests), Body(parts=self._answers)

    @classmethod
    def begin(
        cls,
        captures: Captures,
        target: Route | None,
        request: bytes | None,
        *,
        path: str,
        headers: Headers,
        id_header: IdHeader,
        position: int = 0,
    ) -> "CapturedExchange | None":
        """Begin with a request, or without one if it is not known; None if it is not captured, or
        there is no room. `position`: its number in a stream, from 0."""
        if target is None or not target.call:
            return None
        reservation = captures.begin(len(request or b""), head_size(headers))
        if reservation is None:
            return None
        now = datetime.now(UTC)
        exchange = Exchange(
            transport="grpc",
            method=path,
            path=path,
            position=position,
            request_headers=headers,
            received_at=now,
            forwarded_at=now,
        )
        begun = cls(reservation, target, exchange, id_header)
        if request is not None:
            begun._keep(exchange.request, begun._requests, request, room=not reservation.refused)
        return begun

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


# Methods of known model servers, and what forwarding reads of their messages: the model's name, the
# id, and the end of a request's answers, by messages that leave the tensors unread.


@dataclass(frozen=True, slots=True)
class Method:
    """A known method. Others are forwarded as streams both ways, which carry every arity."""

    unary: bool = True
    head: str | None = None
    """The message that reads the model's name in a request; None if none names it."""


_V2: Final = "/inference.GRPCInferenceService/"
_REPOSITORY: Final = "/inference.model_repository.ModelRepositoryService/"
_OMI: Final = "/ModzyModel/"
_OF_A_SERVER: Final = Method()
_OF_A_MODEL: Final = Method(head="inference.Head")
_NAMED_SECOND: Final = Method(head="inference.NamedSecond")
_OF_A_REPOSITORY: Final = {
    "RepositoryIndex": _OF_A_SERVER,
    "RepositoryModelLoad": _NAMED_SECOND,
    "RepositoryModelUnload": _NAMED_SECOND,
}
_OF_V2: Final = {
    "ServerLive": _OF_A_SERVER,
    "ServerReady": _OF_A_SERVER,
    "ServerMetadata": _OF_A_SERVER,
    "ModelReady": _OF_A_MODEL,
    "ModelMetadata": _OF_A_MODEL,
    "ModelInfer": _OF_A_MODEL,
    "ModelStreamInfer": Method(unary=False, head="inference.Head"),
    # Triton's own
    "ModelConfig": _OF_A_MODEL,
    "ModelStatistics": _OF_A_MODEL,
    "TraceSetting": _NAMED_SECOND,
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
    head = None if method.head is None else parsed(method.head, message)
    return getattr(head, "model_name", None) or None, getattr(head, "model_version", None) or None


_LONGEST_ID: Final = 256
_FINAL: Final = "triton_final_response"
_ASKS_FOR_FINAL: Final = "triton_enable_empty_final_response"


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
    head = parsed("inference.Head", message)
    return RequestHead(_read_id(head), _read_mark(head, _ASKS_FOR_FINAL) is True)


def read_answer(message: bytes, dialect: str | None) -> AnswerHead:
    """Read the head of an answer of a dialect, or that the answer shows; any bytes. An error in
    Triton's message ends the request."""
    if (dialect or find_dialect([message])) == "mlserver":
        head = parsed("inference.Head", message)
        return AnswerHead(_read_id(head), _read_mark(head, _FINAL))
    wrapped = parsed("inference.StreamHead", message)
    head = wrapped and wrapped.infer_response
    is_error = wrapped is not None and bool(wrapped.error_message)
    return AnswerHead(_read_id(head), True if is_error else _read_mark(head, _FINAL))


def _read_id(head: Any) -> str:
    own: str = "" if head is None else head.id
    return own[:_LONGEST_ID]


def _read_mark(head: Any, name: str) -> bool | None:
    """Return a parameter that is a boolean; None if there is none."""
    mark = head.parameters[name] if head is not None and name in head.parameters else None
    if mark is None or mark.WhichOneof("parameter_choice") != "bool_param":
        return None
    return bool(mark.bool_param)
