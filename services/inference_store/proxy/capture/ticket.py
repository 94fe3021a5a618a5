"""The right to keep one exchange's bodies, by the budget."""

from collections.abc import Callable, Iterable
from typing import Final, TypeAlias

from inference_store.proxy.exchange import Exchange
from inference_store.proxy.protocols.protocol import Call
from inference_store.proxy.rules import Rules

from .budget import Budget
from .work import Work

OVERHEAD: Final = 8192
"""Bytes that an exchange is counted with beside its bodies: a queue of empty ones is bounded, and
there is room for what is written of it. Larger heads are counted as they are."""
PART: Final = 64
"""Bytes that a part of a body, and a header, is counted with beside what is in it."""
Hand: TypeAlias = Callable[[Work, int], None]
"""Takes over an exchange, and the bytes reserved for it; never blocks, never raises."""


def head_size(head: Iterable[tuple[str | bytes, str | bytes]]) -> int:
    """Bytes that headers or metadata are counted with."""
    return sum(len(name) + len(value) + PART for name, value in head)


class Ticket:
    """One exchange, from its first byte to its being handed over. For one thread: the loop's."""

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
        """`reservation` is reserved already. `refuse`: counts that there was no budget."""
        self._budget, self._hand, self._refuse = budget, hand, refuse
        self._head, self._chunks = head, chunks
        self.refused = size > body_bytes
        """The size it began with is over the cap: keep no part of that body (Body.whole=False)."""
        self._room = body_bytes - (0 if self.refused else size)
        self._reserved = reservation(head, size, body_bytes)

    def more(self, size: int) -> bool:
        """Reserve more as a body streams through; False: over the budget or over a cap."""
        self._chunks -= 1
        if self._chunks < 0 or size > self._room:
            return False
        if not self._reserved or not self._budget.take(size + PART):
            return False
        self._room -= size
        self._reserved += size + PART
        return True

    def finish(self, exchange: Exchange, call: Call, rules: Rules, model: str) -> None:
        """Hand over; never blocks, never raises. `model`: its name, mapped by the rules.

        Where there is no budget for the answer's head it is counted as dropped.
        """
        if not self._reserved or not rules.capture:
            self.pass_through()
        elif self._take_answers_head(exchange):
            reserved, self._reserved = self._reserved, 0
            self._hand(Work(exchange, call, rules, model), reserved)
        else:
            self.pass_through()
            self._refuse()

    def _take_answers_head(self, exchange: Exchange) -> bool:
        head = self._head + len(exchange.error or "")
        head += head_size(exchange.response_headers) + head_size(exchange.response_trailers)
        more = max(OVERHEAD, head) - max(OVERHEAD, self._head)
        if more and not self._budget.take(more):
            return False
        self._reserved += more
        return True

    def pass_through(self) -> None:
        """It turned out to be nothing to capture: as if never seen."""
        reserved, self._reserved = self._reserved, 0
        self._budget.give_back(reserved)

    def __del__(self) -> None:
        # One that is forgotten must not keep its bytes for ever.
        if getattr(self, "_reserved", 0):
            self.pass_through()


def reservation(head: int, size: int, body_bytes: int) -> int:
    """Bytes to reserve for an exchange that begins with a head and a body of these sizes."""
    return max(OVERHEAD, head) + (size if size <= body_bytes else 0)
