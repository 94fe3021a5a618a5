"""What a captured call was: kept while it passes, handed over when it is over."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Protocol, TypeAlias

from inference_store.proxy.capture import head_size, id_for_answer
from inference_store.proxy.exchange import Body, Exchange, Headers
from inference_store.proxy.protocols.protocol import Call
from inference_store.proxy.rules import Rules

from .metadata import Metadata, kept
from .onward import Onward

OnwardOf: TypeAlias = Callable[[bytes], Onward | None]
"""From the first message of a request."""


class Ticket(Protocol):
    """A captured call's place in the budget: `capture`'s."""

    @property
    def refused(self) -> bool:
        """The size that it began with is over the cap of a body: that is not kept."""
        ...

    def more(self, size: int) -> bool: ...
    def finish(self, exchange: Exchange, call: Call, rules: Rules, model: str) -> None: ...


class Captures(Protocol):
    """Who gives places: `capture`'s."""

    def begin(self, size: int, head: int) -> Ticket | None: ...


class _Kept:
    """Messages of one direction, as long as there is room for them."""

    def __init__(self, more: Callable[[int], bool]) -> None:
        self._more = more
        self._parts: list[bytes] = []
        self._size = 0
        self.whole = True

    def add(self, message: bytes) -> None:
        """Keep it, unless there is no room for it or was none for one before it."""
        self.keep(message, room=self.whole and self._more(len(message)))

    def keep(self, message: bytes, *, room: bool) -> None:
        """`room`: it is reserved."""
        self._size += len(message)
        self.whole = room
        if room:
            self._parts.append(message)

    @property
    def body(self) -> Body:
        return Body(parts=self._parts, size=self._size, whole=self.whole)


class Seen:
    """One call, as far as it is captured: from its first request message on, which names the model
    and so says whether and how. A call that asked nothing is not captured."""

    def __init__(self, captures: Captures, onward_of: OnwardOf, path: str, context: Any) -> None:
        self._captures, self._onward_of = captures, onward_of
        self._path, self._context = path, context
        self._received_at = datetime.now(UTC)
        self._captured: _Captured | None = None
        self.has_asked = False
        self.code: int | None = None
        """How the call ended."""

    def asked(self, message: bytes) -> None:
        """A message of the request is on its way."""
        if not self.has_asked:
            self.has_asked = True
            self._captured = self._begun(message)
        elif self._captured:
            self._captured.request.add(message)

    def _begun(self, first: bytes) -> "_Captured | None":
        onward = self._onward_of(first)
        if onward is None or not onward.call:
            return None
        metadata = kept(self._context.invocation_metadata())
        ticket = self._captures.begin(len(first), head_size(metadata))
        if ticket is None:
            return None
        captured = _Captured(ticket, onward, self._path, metadata, self._received_at)
        captured.request.keep(first, room=not ticket.refused)
        self._context.add_done_callback(captured.hand_over)
        return captured

    @property
    def named(self) -> tuple[tuple[str, str], ...]:
        """What the trailers of the answer say in addition: a name of the inference, where it is
        captured. They end every call; what comes before its messages may be sent before it asks."""
        return () if self._captured is None else self._captured.named

    def answered(self, message: bytes) -> None:
        """A message of the answer is there."""
        if self._captured:
            exchange = self._captured.exchange
            exchange.responded_at = exchange.responded_at or datetime.now(UTC)
            self._captured.response.add(message)

    def ended(
        self, code: int, error: str | None, initial: Metadata = (), trailing: Metadata = ()
    ) -> None:
        """The call is over."""
        self.code = code
        if self._captured:
            exchange = self._captured.exchange
            exchange.grpc_code, exchange.error = code, error or None
            exchange.response_headers = (*kept(initial), *self._captured.named)
            exchange.response_trailers = kept(trailing)
            exchange.finished_at = datetime.now(UTC)


class _Captured:
    """What is kept of a captured call."""

    def __init__(
        self, ticket: Ticket, onward: Onward, path: str, headers: Headers, received_at: datetime
    ) -> None:
        self._ticket, self._onward = ticket, onward
        name, value = id_for_answer(headers)
        # elsewhere than in HTTP an id may be any text
        self.named = ((name, value),) if value.isascii() and value.isprintable() else ()
        self.request, self.response = _Kept(ticket.more), _Kept(ticket.more)
        self.exchange = Exchange(
            transport="grpc",
            method=path,
            path=path,
            request_headers=headers,
            received_at=received_at,
            forwarded_at=datetime.now(UTC),
        )

    def hand_over(self, _: object) -> None:
        """To capture, as it is now."""
        self.exchange.request, self.exchange.response = self.request.body, self.response.body
        onward = self._onward
        if onward.call:
            self._ticket.finish(self.exchange, onward.call, onward.rules, onward.model)
