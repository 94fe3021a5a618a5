"""What the two processes of a proxy know of each other without a message: numbers in memory that
both map, and a text of the capture process.

Every number has one writer, and is written whole. So it is right at any moment, also when its
writer has been killed: the books go on from it, and no number of a sequence is given twice.
"""

import mmap
import os
import tempfile
from collections.abc import MutableSequence
from enum import IntEnum
from typing import Final, Self

from inference_store.inference.producer_reports import DROP_REASONS

REASONS: Final = tuple(DROP_REASONS)


class Cell(IntEnum):
    """Numbers, each with its writer."""

    SEEN = 0
    """Serving: exchanges seen, the refused ones included."""
    TAKEN = 1
    """Serving: bytes reserved since the start, but for those it gave back itself."""
    DEADLINE = 2
    """Serving: when all must have ended, in nanoseconds of the monotonic clock; 0: not yet."""
    RECEIVED = 3
    """Capture: exchanges that came through the socket whole."""
    USED = 4
    """Capture: numbers given to exchanges that are to be kept. Of a dead producer: the highest."""
    SAMPLED_OUT = 5
    PUBLISHED = 6
    EVENTS = 7
    FREED = 8
    """Capture: bytes of TAKEN that are free again."""
    REPORTS = 9
    TELLING = 10
    """Capture: odd while it writes its text."""
    REFUSED = 16
    """Serving: dropped, one number for each of REASONS."""
    DROPPED = 32
    """Capture: dropped, one number for each of REASONS."""


CELLS: Final = 64
Cells = MutableSequence[int]
_TEXT: Final = CELLS * 8
_SIZE: Final = 64 * 1024
_LENGTH: Final = 4


class Page:
    """The memory. `file`: its descriptor, for the process that maps it as well."""

    def __init__(self, file: int) -> None:
        self.file = file
        self._map = mmap.mmap(file, _SIZE)
        self._bytes = memoryview(self._map)
        self.cells: Cells = self._bytes[:_TEXT].cast("q")  # type: ignore[assignment]

    @classmethod
    def new(cls) -> Self:
        """All zero; in no folder, and gone with the last process that maps it."""
        if hasattr(os, "memfd_create"):
            file = os.memfd_create("captures")
        else:
            with tempfile.TemporaryFile() as unnamed:
                file = os.dup(unnamed.fileno())
        os.truncate(file, _SIZE)
        return cls(file)

    def close(self) -> None:
        """Let go of the descriptor; the memory stays as long as this object."""
        os.close(self.file)

    def tell(self, text: bytes) -> None:
        """Write the text anew; one that is too long is left out."""
        end = _TEXT + _LENGTH + len(text)
        if end > _SIZE:
            return
        odd = self.cells[Cell.TELLING] | 1
        self.cells[Cell.TELLING] = odd
        self._bytes[_TEXT : _TEXT + _LENGTH] = len(text).to_bytes(_LENGTH, "big")
        self._bytes[_TEXT + _LENGTH : end] = text
        self.cells[Cell.TELLING] = odd + 1

    def told(self) -> bytes | None:
        """The text; None: there is none, or it is being written."""
        before = self.cells[Cell.TELLING]
        length = int.from_bytes(self._bytes[_TEXT : _TEXT + _LENGTH], "big")
        start = _TEXT + _LENGTH
        text = bytes(self._bytes[start : min(start + length, _SIZE)])
        whole = before and before % 2 == 0 and before == self.cells[Cell.TELLING]
        return text if whole else None
