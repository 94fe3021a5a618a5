"""Lets go what an upstream holds back of an answer, part by part: see engines/gate.py."""

from pathlib import Path


class Gate:
    """The folder that the upstream is told: part 0 goes at once, the next when it is let go."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._parts = 0

    def let_next(self, count: int = 1) -> None:
        """Let the next parts go."""
        for _ in range(count):
            self._parts += 1
            (self.folder / str(self._parts)).touch()
