"""The one budget of bytes: bodies in flight, exchanges waiting, and what is made of them."""

from threading import Lock

from inference_store.store.metrics import CAPTURE_BUDGET, CAPTURE_BYTES


class Budget:
    """Bytes that may be held; shared by the event loop and the threads."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._held = 0
        self._lock = Lock()
        CAPTURE_BUDGET.set(limit)
        CAPTURE_BYTES.set_function(lambda: self._held)

    @property
    def held(self) -> int:
        """Bytes held now."""
        return self._held

    def take(self, size: int) -> bool:
        """Reserve; False, and nothing is reserved, where that would be over the limit."""
        with self._lock:
            if self._held + size > self.limit:
                return False
            self._held += size
            return True

    def change(self, by: int) -> None:
        """Give back, or add to what was reserved: what an exchange became may be larger than it."""
        with self._lock:
            self._held += by
