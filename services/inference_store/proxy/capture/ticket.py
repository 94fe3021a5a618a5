"""The right to keep one exchange's bodies, by the budget."""

from collections.abc import Callable
from typing import TypeAlias

from inference_store.proxy.exchange import Exchange
from inference_store.proxy.protocols.protocol import Call
from inference_store.proxy.rules import Rules

from .budget import Budget
from .work import Work

OVERHEAD = 8192
"""Bytes that an exchange is counted with beside its bodies: a queue of empty ones is bounded, and
there is room for what is written of it."""
Hand: TypeAlias = Callable[[Work, int], None]
"""Takes over an exchange, and the bytes reserved for it; never blocks, never raises."""


class Ticket:
    """One exchange, from its first byte to its being handed over. For one thread: the loop's."""

    __slots__ = ("_body_bytes", "_budget", "_chunks", "_hand", "_reserved", "refused")

    def __init__(
        self, budget: Budget, hand: Hand, *, size: int, body_bytes: int, chunks: int
    ) -> None:
        """OVERHEAD and, unless `refused`, `size` are reserved already."""
        self._budget, self._hand = budget, hand
        self._body_bytes, self._chunks = body_bytes, chunks
        self.refused = size > body_bytes
        """The size it began with is over the cap: keep no part of that body (Body.whole=False)."""
        self._reserved = OVERHEAD + (0 if self.refused else size)

    def more(self, size: int) -> bool:
        """Reserve more as a body streams through; False: over the budget or over a cap."""
        self._chunks -= 1
        if self._chunks < 0 or self._reserved + size > self._body_bytes + OVERHEAD:
            return False
        if not self._reserved or not self._budget.take(size):
            return False
        self._reserved += size
        return True

    def finish(self, exchange: Exchange, call: Call, rules: Rules, model: str) -> None:
        """Hand over; never blocks, never raises. `model`: its name, mapped by the rules."""
        reserved, self._reserved = self._reserved, 0
        if not reserved:
            return
        if rules.capture:
            self._hand(Work(exchange, call, rules, model), reserved)
        else:
            self._budget.give_back(reserved)

    def pass_through(self) -> None:
        """It turned out to be nothing to capture: as if never seen."""
        reserved, self._reserved = self._reserved, 0
        self._budget.give_back(reserved)

    def __del__(self) -> None:
        # One that is forgotten must not keep its bytes for ever.
        if getattr(self, "_reserved", 0):
            self.pass_through()
