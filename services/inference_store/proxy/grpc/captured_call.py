"""A captured call: recorded while it passes, handed over when it ends."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Protocol, TypeAlias

from inference_store.proxy.capture import head_size, id_for_answer
from inference_store.proxy.exchange import Body, Exchange, Headers
from inference_store.proxy.protocols.protocol import Call
from inference_store.proxy.rules import Rules

from .call_target import CallTarget
from .metadata import Metadata, metadata_as_headers

FindTarget: TypeAlias = Callable[[bytes], CallTarget | None]
"""Returns the target for the first message of a request."""


class Reservation(Protocol):
    """The memory that a captured call holds of the budget; `proxy.capture` implements it."""

    @property
    def refused(self) -> bool:
        """True if the initial size is over the cap of a body, which is not kept then."""
        ...

    def reserve_more(self, size: int) -> bool: ...
    def finish(self, exchange: Exchange, call: Call, rules: Rules, model: str) -> None: ...


class Captures(Protocol):
    """Reserves memory; `proxy.capture` implements it."""

    def begin(self, size: int, head: int) -> Reservation | None: ...


class _CapturedMessages:
    """The messages of one direction, as long as there is room for them."""

    def __init__(self, reserve: Callable[[int], bool]) -> None:
        self._reserve = reserve
        self._parts: list[bytes] = []
        self._size = 0
        self.whole = True

    def add(self, message: bytes) -> None:
        """Keep a message, unless there is no room for it, or was none for an earlier one."""
        self.keep(message, room=self.whole and self._reserve(len(message)))

    def keep(self, message: bytes, *, room: bool) -> None:
        """Count a message, and keep it if `room` is reserved for it."""
        self._size += len(message)
        self.whole = room
        if room:
            self._parts.append(message)

    @property
    def body(self) -> Body:
        return Body(parts=self._parts, size=self._size, whole=self.whole)


class CapturedCall:
    """One call, as far as it is captured: from its first request message on, whose model decides
    whether and how. A call without a request is not captured."""

    def __init__(
        self, captures: Captures, find_target: FindTarget, path: str, context: Any
    ) -> None:
        self._captures, self._find_target = captures, find_target
        self._path, self._context = path, context
        self._received_at = datetime.now(UTC)
        self._captured: _Capture | None = None
        self.has_request = False
        self.code: int | None = None
        """The status code that ended the call."""

    def record_request(self, message: bytes) -> None:
        """Record a message of the request."""
        if not self.has_request:
            self.has_request = True
            self._captured = self._begin(message)
        elif self._captured:
            self._captured.request.add(message)

    def _begin(self, first: bytes) -> "_Capture | None":
        target = self._find_target(first)
        if target is None or not target.call:
            return None
        metadata = metadata_as_headers(self._context.invocation_metadata())
        reservation = self._captures.begin(len(first), head_size(metadata))
        if reservation is None:
            return None
        captured = _Capture(reservation, target, self._path, metadata, self._received_at)
        captured.request.keep(first, room=not reservation.refused)
        self._context.add_done_callback(captured.hand_over)
        return captured

    @property
    def id_trailers(self) -> tuple[tuple[str, str], ...]:
        """The trailers to add to the answer: an id of the inference, if it is captured. Trailers,
        because initial metadata may be sent before the request arrives."""
        return () if self._captured is None else self._captured.id_trailers

    def record_response(self, message: bytes) -> None:
        """Record a message of the answer."""
        if self._captured:
            exchange = self._captured.exchange
            exchange.responded_at = exchange.responded_at or datetime.now(UTC)
            self._captured.response.add(message)

    def record_end(
        self, code: int, error: str | None, initial: Metadata = (), trailing: Metadata = ()
    ) -> None:
        """Record the end of the call."""
        self.code = code
        if self._captured:
            exchange = self._captured.exchange
            exchange.grpc_code, exchange.error = code, error or None
            exchange.response_headers = (*metadata_as_headers(initial), *self._captured.id_trailers)
            exchange.response_trailers = metadata_as_headers(trailing)
            exchange.finished_at = datetime.now(UTC)


class _Capture:
    """The captured messages of a call, and its exchange."""

    def __init__(
        self,
        reservation: Reservation,
        target: CallTarget,
        path: str,
        headers: Headers,
        received_at: datetime,
    ) -> None:
        self._reservation, self._target = reservation, target
        name, value = id_for_answer(headers)
        # outside HTTP an id may be any text
        self.id_trailers = ((name, value),) if value.isascii() and value.isprintable() else ()
        self.request, self.response = (
            _CapturedMessages(reservation.reserve_more),
            _CapturedMessages(reservation.reserve_more),
        )
        self.exchange = Exchange(
            transport="grpc",
            method=path,
            path=path,
            request_headers=headers,
            received_at=received_at,
            forwarded_at=datetime.now(UTC),
        )

    def hand_over(self, _: object) -> None:
        """Hand the exchange over to capture, as it is now."""
        self.exchange.request, self.exchange.response = self.request.body, self.response.body
        target = self._target
        if target.call:
            self._reservation.finish(self.exchange, target.call, target.rules, target.model)
