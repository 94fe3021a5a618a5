"""What is kept of a body on its way through."""

from typing import Final, Protocol

from inference_store.proxy.exchange import Body, Exchange
from inference_store.proxy.protocols.protocol import Call
from inference_store.proxy.rules import Rules


class Ticket(Protocol):
    """What an exchange may keep; `proxy.capture` has the one that counts."""

    refused: bool
    """The declared size is over the cap of a body: nothing of the request is kept."""

    def more(self, size: int) -> bool:
        """Reserve more; False: keep no more parts."""

    def finish(self, exchange: Exchange, call: Call, rules: Rules, model: str) -> None:
        """Hand over what was kept."""


# Smaller parts of a request are put together: each costs more than its bytes.
_SMALL: Final = 4096


class Kept:
    """What is kept of a body: all its parts, while there is memory for them."""

    def __init__(self, body: Body, ticket: Ticket | None, reserved: int | None = None) -> None:
        """`reserved`: of a request, the bytes that were reserved when the call began; of an answer,
        which may be a stream, the beginning is kept where there is no memory for all."""
        self._body = body
        self._ticket = ticket
        self._is_request = reserved is not None
        self._reserved = 0 if ticket is None or ticket.refused else reserved or 0
        self._parts: list[bytes] = []
        body.parts = self._parts

    def add(self, part: bytes) -> None:
        """Keep a part, if there is memory for it."""
        self._body.size += len(part)
        if self._ticket is None or not part or not self._body.whole:
            return
        if self._body.size <= self._reserved:
            self._put(part)
        elif self._ticket.more(len(part)):
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
