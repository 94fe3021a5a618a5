"""The one budget of bytes: bodies in flight, exchanges waiting, and what is made of them."""

from threading import Lock

from .page import Cell, Cells


class Budget:
    """Bytes that may be held by both processes. Serving takes them; capture frees them."""

    def __init__(self, cells: Cells, limit: int) -> None:
        self.limit = limit
        self._cells = cells
        self._lock = Lock()

    @property
    def held(self) -> int:
        """Bytes held now."""
        return self._cells[Cell.TAKEN] - self._cells[Cell.FREED]

    def take(self, size: int) -> bool:
        """Serving: reserve; False, and nothing is reserved, where that would be over the limit."""
        with self._lock:
            if self.held + size > self.limit:
                return False
            self._cells[Cell.TAKEN] += size
            return True

    def give_back(self, size: int) -> None:
        """Serving: what was reserved and is not handed over."""
        with self._lock:
            self._cells[Cell.TAKEN] -= size

    def free(self, size: int) -> None:
        """Capture: what was handed over, or part of it; less than nothing where an exchange became
        larger than it was."""
        with self._lock:
            self._cells[Cell.FREED] += size
