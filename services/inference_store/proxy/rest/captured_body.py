"""The parts of a body that are captured as it passes through."""

from typing import Final, Protocol

from inference_store.proxy.exchange import Body, Exchange
from inference_store.proxy.protocols.protocol import Call
from inference_store.proxy.rules import Rules


class Reservation(Protocol):
    """The memory that an exchange may use; `proxy.capture` implements it."""

    refused: bool
    """The declared size is over the cap of a body: nothing of the request is captured."""

    def reserve_more(self, size: int) -> bool:
        """Reserve more bytes; return False if no more parts may be kept."""

    def finish(self, exchange: Exchange, call: Call, rules: Rules, model: str) -> None:
        """Hand over the captured exchange."""


# Smaller parts of a request are merged: each costs more than its bytes.
_SMALL: Final = 4096


class CapturedBody:
    """The captured parts of a body: all of them, while there is memory."""

    def __init__(
        self, body: Body, reservation: Reservation | None, reserved: int | None = None
    ) -> None:
        """`reserved`: for a request, the bytes that were reserved when the call began; None for an
        answer, which may be a stream: its beginning is kept if there is no memory for all of it."""
        self._body = body
        self._reservation = reservation
        self._is_request = reserved is not None
        self._reserved = 0 if reservation is None or reservation.refused else reserved or 0
        self._parts: list[bytes] = []
        body.parts = self._parts

    def add(self, part: bytes) -> None:
        """Keep a part, if there is memory for it."""
        self._body.size += len(part)
        if self._reservation is None or not part or not self._body.whole:
            return
        if self._body.size <= self._reserved:
            self._put(part)
        elif self._reservation.reserve_more(len(part)):
            self._parts.append(part)
        else:
            self._body.whole = False
            if self._is_request:
                self._parts.clear()

    def _put(self, part: bytes) -> None:
        if self._parts and len(self._parts[-1]) + len(part) <= _SMALL:
            self._parts[-1] += part
        else:
            self._parts.append(part)
