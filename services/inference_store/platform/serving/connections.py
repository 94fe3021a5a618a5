"""The connections of one port, counted in all and by address."""

from collections import Counter
from typing import Literal, TypeAlias, get_args

from inference_store.platform.metrics import CONNECTIONS, CONNECTIONS_LATE, CONNECTIONS_REFUSED

Port: TypeAlias = Literal["api", "proxy", "admin"]
Late: TypeAlias = Literal["head", "body", "idle", "write"]
"""What of a connection took too long."""
Limit: TypeAlias = Literal["all", "address"]
"""Of which there is no room for one more."""


class Connections:
    """Takes connections while there is room for them."""

    def __init__(self, port: Port, most: int, most_of_one: int) -> None:
        """`most` in all, `most_of_one` from one address."""
        self.port = port
        self.most = most
        self._most_of_one = min(most, most_of_one)
        self._by_address: Counter[str] = Counter()
        self._all = 0
        CONNECTIONS.labels(port).set_function(lambda: self._all)
        # From zero, so that the first one is an increase.
        for limit in get_args(Limit):
            CONNECTIONS_REFUSED.labels(port, limit)
        for late in get_args(Late):
            CONNECTIONS_LATE.labels(port, late)

    def take(self, address: str) -> bool:
        """Count one in; False: there is no room for it."""
        if self._all >= self.most:
            return self._refuse("all")
        if self._by_address.get(address, 0) >= self._most_of_one:
            return self._refuse("address")
        self._all += 1
        self._by_address[address] += 1
        return True

    def release(self, address: str) -> None:
        """Count one out that was taken."""
        self._all -= 1
        self._by_address[address] -= 1
        if not self._by_address[address]:
            del self._by_address[address]

    def count_late(self, late: Late) -> None:
        """One is closed because something took too long."""
        CONNECTIONS_LATE.labels(self.port, late).inc()

    def _refuse(self, limit: Limit) -> bool:
        CONNECTIONS_REFUSED.labels(self.port, limit).inc()
        return False

    async def why_full(self) -> str | None:
        """A check of readiness. None: there is room."""
        if self._all < self.most:
            return None
        return (
            f"all {self.most} connections are taken:"
            " raise INFERENCE_STORE_CONNECTIONS, or find who holds them"
        )
