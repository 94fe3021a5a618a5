"""The memory that one capture holds of the budget."""

from collections.abc import Callable, Iterable
from typing import Final, TypeAlias

from inference_store.proxy.exchange import Exchange
from inference_store.proxy.protocols.protocol import Call
from inference_store.proxy.rules import Rules

from .budget import Budget
from .work import Work

OVERHEAD: Final = 8192
"""Bytes counted for an exchange in addition to its bodies: a queue of empty ones is bounded, and
there is room for its documents. Larger heads are counted in full."""
PART: Final = 64
"""Bytes counted for a part of a body, and for a header, in addition to its content."""
Hand: TypeAlias = Callable[[Work, int], None]
"""Takes over an exchange, and the bytes reserved for it; never blocks, never raises."""


def head_size(head: Iterable[tuple[str | bytes, str | bytes]]) -> int:
    """Return how many bytes headers or metadata are counted with."""
    return sum(len(name) + len(value) + PART for name, value in head)


class Reservation:
    """The memory of one exchange, from its first byte until it is handed over. For the loop's
    thread."""

    __slots__ = ("_budget", "_chunks", "_hand", "_head", "_refuse", "_reserved", "_room", "refused")

    def __init__(
        self,
        budget: Budget,
        hand: Hand,
        refuse: Callable[[], None],
        *,
        head: int,
        size: int,
        body_bytes: int,
        chunks: int,
    ) -> None:
        """`reservation_size` bytes are reserved already.

        `refuse` counts that there was no budget.
        """
        self._budget, self._hand, self._refuse = budget, hand, refuse
        self._head, self._chunks = head, chunks
        self.refused = size > body_bytes
        """True if the initial size is over the cap: keep no part of that body
        (Body.whole=False)."""
        self._room = body_bytes - (0 if self.refused else size)
        self._reserved = reservation_size(head, size, body_bytes)

    def reserve_more(self, size: int) -> bool:
        """Reserve more as a body streams through; return False if that exceeds the budget or a
        cap."""
        self._chunks -= 1
        if self._chunks < 0 or size > self._room:
            return False
        if not self._reserved or not self._budget.take(size + PART):
            return False
        self._room -= size
        self._reserved += size + PART
        return True

    def finish(self, exchange: Exchange, call: Call, rules: Rules, model: str) -> None:
        """Hand the exchange over; never blocks, never raises. `model`: its name, mapped by the
        rules.

        If there is no budget for the answer's head, it is counted as dropped.
        """
        if not self._reserved or not rules.capture:
            self.pass_through()
        elif self._reserve_answer_head(exchange):
            reserved, self._reserved = self._reserved, 0
            self._hand(Work(exchange, call, rules, model), reserved)
        else:
            self.pass_through()
            self._refuse()

    def _reserve_answer_head(self, exchange: Exchange) -> bool:
        head = self._head + len(exchange.error or "")
        head += head_size(exchange.response_headers) + head_size(exchange.response_trailers)
        reserve_more = max(OVERHEAD, head) - max(OVERHEAD, self._head)
        if reserve_more and not self._budget.take(reserve_more):
            return False
        self._reserved += reserve_more
        return True

    def pass_through(self) -> None:
        """Release the memory: there is nothing to capture."""
        reserved, self._reserved = self._reserved, 0
        self._budget.give_back(reserved)

    def __del__(self) -> None:
        # A forgotten reservation must not keep its bytes forever.
        if getattr(self, "_reserved", 0):
            self.pass_through()


def reservation_size(head: int, size: int, body_bytes: int) -> int:
    """Return the bytes to reserve for an exchange that begins with a head and a body of these
    sizes."""
    return max(OVERHEAD, head) + (size if size <= body_bytes else 0)
