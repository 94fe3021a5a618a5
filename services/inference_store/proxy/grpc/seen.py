"""What a captured call was: kept while it passes, handed over when it is over."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Protocol

from inference_store.proxy.exchange import Body, Exchange
from inference_store.proxy.protocols.protocol import Call
from inference_store.proxy.rules import Rules

from .metadata import Metadata, kept


class Ticket(Protocol):
    """A captured call's place in the budget: `capture`'s."""

    def more(self, size: int) -> bool: ...
    def finish(self, exchange: Exchange, call: Call, rules: Rules, model: str) -> None: ...


class Captures(Protocol):
    """Who gives places: `capture`'s."""

    def begin(self, size: int) -> Ticket | None: ...


class _Kept:
    """Messages of one direction, as long as there is room for them."""

    def __init__(self, more: Callable[[int], bool]) -> None:
        self._more = more
        self._parts: list[bytes] = []
        self._size = 0
        self.whole = True

    def add(self, message: bytes, *, reserved: bool = False) -> None:
        self._size += len(message)
        self.whole = self.whole and (reserved or self._more(len(message)))
        if self.whole:
            self._parts.append(message)

    @property
    def body(self) -> Body:
        return Body(parts=self._parts, size=self._size, whole=self.whole)


class Seen:
    """One captured call."""

    def __init__(self, ticket: Ticket, call: Call, rules: Rules, model: str) -> None:
        self._ticket = ticket
        self._call, self._rules, self._model = call, rules, model
        self._request = _Kept(ticket.more)
        self._response = _Kept(ticket.more)

    def began(self, path: str, metadata: Metadata | None) -> None:
        """The call is here."""
        self.exchange = Exchange(
            transport="grpc",
            method=path,
            path=path,
            request_headers=kept(metadata),
            received_at=datetime.now(UTC),
        )

    def asked(self, message: bytes, *, reserved: bool = False) -> None:
        """A message of the request is on its way; `reserved`: with the ticket already."""
        if self.exchange.forwarded_at is None:
            self.exchange.forwarded_at = datetime.now(UTC)
        self._request.add(message, reserved=reserved)

    def answered(self, message: bytes) -> None:
        """A message of the answer is there."""
        if self.exchange.responded_at is None:
            self.exchange.responded_at = datetime.now(UTC)
        self._response.add(message)

    def ended(self, code: int, error: str | None) -> None:
        """The call is over; the first word counts."""
        if self.exchange.grpc_code is None:
            self.exchange.grpc_code = code
            self.exchange.error = error or None
            self.exchange.finished_at = datetime.now(UTC)

    def hand_over(self, _: object) -> None:
        """To capture, as it is now."""
        self.exchange.request = self._request.body
        self.exchange.response = self._response.body
        self._ticket.finish(self.exchange, self._call, self._rules, self._model)
