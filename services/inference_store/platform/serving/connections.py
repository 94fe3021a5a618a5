"""Counts the connections of one port, in total and by address."""

from collections import Counter
from typing import Literal, TypeAlias, get_args

from inference_store.platform.metrics import CONNECTIONS, CONNECTIONS_LATE, CONNECTIONS_REFUSED

Port: TypeAlias = Literal["api", "proxy", "admin"]
Late: TypeAlias = Literal["head", "body", "idle", "write"]
"""The part of a connection that took too long."""
Limit: TypeAlias = Literal["all", "address"]
"""The limit that leaves no room for a connection."""


class Connections:
    """Takes connections while there is room for them."""

    def __init__(self, port: Port, most: int, most_of_one: int) -> None:
        """`most`: in total; `most_of_one`: from one address."""
        self.port = port
        self.most = most
        self.most_of_one = min(most, most_of_one)
        self._by_address: Counter[str] = Counter()
        self._all = 0
        CONNECTIONS.labels(port).set_function(lambda: self._all)
        # From zero, so that the first one is an increase.
        for limit in get_args(Limit):
            CONNECTIONS_REFUSED.labels(port, limit)
        for late in get_args(Late):
            CONNECTIONS_LATE.labels(port, late)

    def take(self, address: str) -> bool:
        """Count a new connection; return False if there is no room for it."""
        if self._all >= self.most:
            return self.refuse("all")
        if self._by_address.get(address, 0) >= self.most_of_one:
            return self.refuse("address")
        self._all += 1
        self._by_address[address] += 1
        return True

    def release(self, address: str) -> None:
        """Count a taken connection that has ended."""
        self._all -= 1
        self._by_address[address] -= 1
        if not self._by_address[address]:
            del self._by_address[address]

    def count_late(self, late: Late) -> None:
        """Count a connection that is closed because something took too long."""
        CONNECTIONS_LATE.labels(self.port, late).inc()

    def refuse(self, limit: Limit) -> bool:
        """Count a connection without room, and return False."""
        CONNECTIONS_REFUSED.labels(self.port, limit).inc()
        return False

    async def why_full(self) -> str | None:
        """Return why no connection is taken, for the readiness check; None if there is room."""
        if self._all < self.most:
            return None
        return (
            f"all {self.most} connections are taken:"
            " raise INFERENCE_STORE_CONNECTIONS, or find who holds them"
        )
