"""Counters that the two processes of a proxy share without a message: numbers in memory that both
map, and a status that the capture process writes.

Every number has one writer, and is written whole. So it is right at any moment, even after its
writer was killed: accounting continues from it, and no sequence number is given twice.
"""

import mmap
import os
import tempfile
from collections.abc import MutableSequence
from enum import IntEnum
from typing import Final, Self

from inference_store.inference.producer_reports import DROP_REASONS

REASONS: Final = tuple(DROP_REASONS)


class CounterId(IntEnum):
    """The index of each counter, and which process writes it."""

    SEEN = 0
    """Serving: exchanges seen, the refused ones included."""
    TAKEN = 1
    """Serving: bytes reserved since the start, except those it gave back itself."""
    DEADLINE = 2
    """Serving: when all work must have ended, in nanoseconds of the monotonic clock; 0: not set
    yet."""
    RECEIVED = 3
    """Capture: exchanges that came through the socket whole."""
    USED = 4
    """Capture: numbers given to exchanges to publish. For a dead producer: the highest."""
    SAMPLED_OUT = 5
    PUBLISHED = 6
    EVENTS = 7
    FREED = 8
    """Capture: bytes of TAKEN that are free again."""
    REPORTS = 9
    WRITING_STATUS = 10
    """Capture: odd while it writes its status."""
    REFUSED = 16
    """Serving: dropped, one number for each of REASONS."""
    DROPPED = 32
    """Capture: dropped, one number for each of REASONS."""


COUNTER_COUNT: Final = 64
CounterValues = MutableSequence[int]
_TEXT: Final = COUNTER_COUNT * 8
_SIZE: Final = 64 * 1024
_LENGTH: Final = 4


class SharedCounters:
    """The shared memory. `file`: its descriptor, for the process that maps it as well."""

    def __init__(self, file: int) -> None:
        self.file = file
        self._map = mmap.mmap(file, _SIZE)
        self._bytes = memoryview(self._map)
        self.values: CounterValues = self._bytes[:_TEXT].cast("q")  # type: ignore[assignment]

    @classmethod
    def new(cls) -> Self:
        """Create the memory: all zero, in no folder, and freed with the last process that maps
        it."""
        if hasattr(os, "memfd_create"):
            file = os.memfd_create("captures")
        else:
            with tempfile.TemporaryFile() as unnamed:
                file = os.dup(unnamed.fileno())
        os.truncate(file, _SIZE)
        return cls(file)

    def close(self) -> None:
        """Close the descriptor; the memory stays as long as this object."""
        os.close(self.file)

    def write_status(self, text: bytes) -> None:
        """Replace the status; one that is too long is left out."""
        end = _TEXT + _LENGTH + len(text)
        if end > _SIZE:
            return
        odd = self.values[CounterId.WRITING_STATUS] | 1
        self.values[CounterId.WRITING_STATUS] = odd
        self._bytes[_TEXT : _TEXT + _LENGTH] = len(text).to_bytes(_LENGTH, "big")
        self._bytes[_TEXT + _LENGTH : end] = text
        self.values[CounterId.WRITING_STATUS] = odd + 1

    def read_status(self) -> bytes | None:
        """Return the status; None if there is none, or it is being written."""
        before = self.values[CounterId.WRITING_STATUS]
        length = int.from_bytes(self._bytes[_TEXT : _TEXT + _LENGTH], "big")
        start = _TEXT + _LENGTH
        text = bytes(self._bytes[start : min(start + length, _SIZE)])
        whole = before and before % 2 == 0 and before == self.values[CounterId.WRITING_STATUS]
        return text if whole else None
