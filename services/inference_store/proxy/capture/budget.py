"""The limit on the bytes of bodies in flight, waiting exchanges and prepared captures together."""

from threading import Lock

from .shared_counters import CounterId, CounterValues


class Budget:
    """Bytes that both processes may hold together. Serving takes them; capture frees them."""

    def __init__(self, values: CounterValues, limit: int) -> None:
        self.limit = limit
        self._values = values
        self._lock = Lock()

    @property
    def held(self) -> int:
        """Bytes held now."""
        return self._values[CounterId.TAKEN] - self._values[CounterId.FREED]

    def take(self, size: int) -> bool:
        """Reserve bytes, in the serving process; return False and reserve none if that would exceed
        the limit."""
        with self._lock:
            if self.held + size > self.limit:
                return False
            self._values[CounterId.TAKEN] += size
            return True

    def give_back(self, size: int) -> None:
        """Return bytes that were reserved and are not handed over, in the serving process."""
        with self._lock:
            self._values[CounterId.TAKEN] -= size

    def free(self, size: int) -> None:
        """Free bytes that were handed over, in the capture process; negative if an exchange
        grew."""
        with self._lock:
            self._values[CounterId.FREED] += size
