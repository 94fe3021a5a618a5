"""Captures that keep what they are handed, in the place of those that write it."""

import asyncio
from collections.abc import Collection
from dataclasses import dataclass, field
from types import SimpleNamespace

from inference_store.proxy.exchange import Exchange
from inference_store.proxy.routing import Route


@dataclass
class FakeCaptures:
    """Takes exchanges while there is room, and keeps them."""

    room: int = 1 << 30
    """Bytes of each exchange."""
    most: int = 1 << 30
    """The largest request that is kept."""
    refused: Collection[int] = ()
    """The numbers of the exchanges for which there is no room."""
    queue: SimpleNamespace = field(default_factory=lambda: SimpleNamespace(is_needed=False))
    heads: list[int] = field(default_factory=list)
    """The sizes of the heads of calls."""
    begun: int = 0
    expected: int = 0
    """Exchanges that wait to be handed over."""
    finished: list[tuple[Exchange, Route]] = field(default_factory=list)
    _waiting: asyncio.Queue[Exchange] = field(default_factory=asyncio.Queue)

    def begin(self, size: int, head: int) -> "Ticket | None":
        self.heads.append(head)
        if size > self.room or len(self.heads) - 1 in self.refused:
            return None
        self.begun += 1
        return Ticket(self, size)

    def expect(self, count: int) -> None:
        self.expected += count

    def hand_over(self, exchange: Exchange, route: Route) -> None:
        self.finished.append((exchange, route))
        self._waiting.put_nowait(exchange)

    @property
    def exchanges(self) -> list[Exchange]:
        return [exchange for exchange, _ in self.finished]

    async def exchange(self) -> Exchange:
        async with asyncio.timeout(300):
            return await self._waiting.get()


class Ticket:
    """The room of one exchange."""

    def __init__(self, captures: FakeCaptures, size: int) -> None:
        self.refused = size > captures.most
        self.finish = captures.hand_over
        self.size = size
        self._room = captures.room - (0 if self.refused else size)

    def reserve_more(self, size: int) -> bool:
        self._room -= size
        return self._room >= 0

    def absorb(self, other: "Ticket") -> None:
        self.size += other.size

    def pass_through(self) -> None:
        self.size = 0
