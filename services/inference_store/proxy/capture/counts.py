"""Counts the outcomes of one producer's exchanges, so that its accounting adds up, and the bytes
that they hold.

The two processes of a proxy share the numbers without a message, in memory that both map, with a
status that the capture process writes. Every number has one writer, and is written whole. So it is
right at any moment, even after its writer was killed: accounting continues from it, and no sequence
number is given twice.

With a spool the numbers are also stored in the lock of the producer's folder, before others can see
what they count: an event, a report, a capture on disk. So a process that finds the lock of two dead
ones continues from it in the same way.
"""

import mmap
import os
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import IntEnum
from threading import Lock
from typing import Final, Self, TypeAlias

from inference_store.inference.producer_reports import DROP_REASONS, ProducerReport
from inference_store.platform.metrics import CAPTURED_EVENTS, CAPTURES, CAPTURES_DROPPED

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
    """Capture: numbers given to exchanges to publish."""
    SAMPLED_OUT = 5
    PUBLISHED = 6
    EVENTS = 7
    FREED = 8
    """Capture: bytes of TAKEN that are free again."""
    REPORTS = 9
    WRITING_STATUS = 10
    """Capture: odd while it writes its status."""
    HANDED = 11
    """Serving: bytes of TAKEN that were handed over."""
    IS_AWAY = 12
    """Capture: 1 while a server is unavailable."""
    BOOTED = 13
    """Serving: when it started, in microseconds of Unix time."""
    SPOOLED = 14
    """Capture: exchanges in the spool, including those being published."""
    SPOOL_BYTES = 15
    REFUSED = 16
    """Serving: dropped, one number for each of REASONS."""
    DROPPED = 32
    """Capture: dropped, one number for each of REASONS."""
    HAS_ENDED = 48
    """1 once the outcome of all that was seen is known: its processes were not both killed."""


CounterValues: TypeAlias = "memoryview[int]"
_TEXT: Final = 64 * 8
_SIZE: Final = 64 * 1024
_LENGTH: Final = 4
_FEW: Final = 100


def read_values(stored: bytes = b"") -> CounterValues:
    """Return counters of our own that begin with stored ones; those that are missing are 0."""
    return memoryview(bytearray(stored[:_TEXT].ljust(_TEXT, b"\0"))).cast("q")


class SharedCounters:
    """The shared memory. `file`: its descriptor, for the process that maps it as well."""

    def __init__(self, file: int) -> None:
        self.file = file
        self._map = mmap.mmap(file, _SIZE)
        self._bytes = memoryview(self._map)
        self.values: CounterValues = self._bytes[:_TEXT].cast("q")

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


@dataclass(slots=True)
class Counts:
    """Totals of one producer; `seen = sampled out + dropped + queued + published` at any time."""

    producer: str
    values: CounterValues = field(default_factory=read_values, repr=False)
    """Shared by the two processes of a producer that lives."""
    file: int = -1
    """The lock of its folder in the spool, where they are stored; -1: it has none."""
    _lock: Lock = field(default_factory=Lock)

    @classmethod
    def stored(cls, producer: str, file: int) -> Self:
        """Return the counts of a dead producer. Raises OSError."""
        return cls(producer, read_values(os.pread(file, _TEXT, 0)), file)

    def store(self) -> None:
        """Write the numbers to the lock, if there is one. Blocks."""
        with self._lock, suppress(OSError):
            if self.file >= 0:
                os.pwrite(self.file, self.values, 0)

    def close(self) -> None:
        """Store them, and let the lock go."""
        self.store()
        with self._lock:  # a thread may be about to write to it: the descriptor is reused
            if self.file >= 0:
                os.close(self.file)
            self.file = -1

    def see(self) -> None:
        """Count a queued exchange, in the serving process."""
        self.values[CounterId.SEEN] += 1
        CAPTURES.labels("seen").inc()

    def refuse(self, reason: str) -> None:
        """Count an exchange that is seen and dropped at once, in the serving process; its sequence
        number stays unused."""
        self.see()
        self.values[CounterId.REFUSED + REASONS.index(reason)] += 1
        _count_drop(reason, 1)

    def receive(self, count: int) -> None:
        """Count queued exchanges that came through the socket, in the capture process."""
        self.values[CounterId.RECEIVED] += count

    def sample_out(self) -> None:
        """Count a queued exchange that the rules leave out."""
        with self._lock:
            self.values[CounterId.SAMPLED_OUT] += 1
        CAPTURES.labels("sampled_out").inc()

    def next_sequence(self) -> int:
        """Return the sequence number of an exchange to publish; exchanges that are not published,
        or that serving refuses, leave their numbers unused."""
        with self._lock:
            # counted before it is used: the process after this one does not give it again
            self.values[CounterId.USED] += 1
            return self._highest()

    def spool(self, exchanges: int, size: int) -> None:
        """Count queued exchanges, and bytes, that are in the spool; negative: not any more."""
        with self._lock:
            self.values[CounterId.SPOOLED] += exchanges
            self.values[CounterId.SPOOL_BYTES] += size

    def drop(self, reason: str, count: int = 1) -> None:
        """Count queued exchanges that are lost; `reason` is one of DROP_REASONS."""
        with self._lock:
            self.values[CounterId.DROPPED + REASONS.index(reason)] += count
        _count_drop(reason, count)

    def publish(self, exchanges: int, events: int) -> None:
        """Count queued exchanges whose events Kafka has acknowledged."""
        with self._lock:
            self.values[CounterId.PUBLISHED] += exchanges
            self.values[CounterId.EVENTS] += events
        CAPTURES.labels("published").inc(exchanges)
        CAPTURED_EVENTS.inc(events)

    def go_on(self, handed: int) -> None:
        """Continue after a capture process that received `handed` exchanges: those that are neither
        settled nor in the spool are lost."""
        self._lose(handed, "process_ended")
        self.values[CounterId.RECEIVED] = handed

    def inherit(self, sequences: Iterable[int]) -> None:
        """Continue after both processes, of which these exchanges are in the spool."""
        values = self.values
        # after a power failure they, and a few reports, may be newer than what is stored
        values[CounterId.REPORTS] += _FEW
        values[CounterId.SEEN] += max(0, -self._unspooled(self._handed))
        used = max(sequences, default=0) - self._refused
        values[CounterId.USED] = max(values[CounterId.USED], used)
        self.go_on(self._handed)

    def lose_unread(self) -> None:
        """Count what the serving process had seen and not sent when it died."""
        if (lost := self._handed - self.values[CounterId.RECEIVED]) > 0:
            self.receive(lost)
            with self._lock:
                self.values[CounterId.USED] += lost
            self.drop("process_ended", lost)

    def give_up(self) -> None:
        """Drop queued exchanges at the end, with the reason `left`, except those in the spool."""
        self._lose(self._handed, "left")
        self.values[CounterId.HAS_ENDED] = 1

    def _unspooled(self, handed: int) -> int:
        """Return how many of so many exchanges have no outcome and are not in the spool."""
        values = self.values
        dropped = sum(values[CounterId.DROPPED : CounterId.DROPPED + len(REASONS)])
        settled = values[CounterId.SAMPLED_OUT] + dropped + values[CounterId.PUBLISHED]
        return handed - settled - values[CounterId.SPOOLED]

    def _lose(self, handed: int, reason: str) -> None:
        lost = self._unspooled(handed)
        undecided = handed - self.values[CounterId.SAMPLED_OUT] - self.values[CounterId.USED]
        if undecided > 0:  # there was no time to read or decode them
            self.values[CounterId.USED] += undecided
        if lost > 0:
            self.drop(reason, lost)

    @property
    def has_ended(self) -> bool:
        """False if it lives, or was killed: what it saw since it was last stored nobody knows."""
        return bool(self.values[CounterId.HAS_ENDED])

    @property
    def queued(self) -> int:
        """Exchanges that have no outcome yet."""
        return self._unspooled(self._handed) + self.values[CounterId.SPOOLED]

    @property
    def published(self) -> int:
        """Exchanges that Kafka has acknowledged."""
        return self.values[CounterId.PUBLISHED]

    @property
    def dropped(self) -> dict[str, int]:
        """Exchanges dropped, by reason."""
        counts = (
            self.values[CounterId.REFUSED + i] + self.values[CounterId.DROPPED + i]
            for i in range(len(REASONS))
        )
        return {reason: count for reason, count in zip(REASONS, counts, strict=True) if count}

    def report(self, *, final: bool = False) -> ProducerReport:
        """Return a report of the current totals."""
        with self._lock:
            self.values[CounterId.REPORTS] += 1
            # In this order: an exchange has no outcome before it is seen.
            sampled_out, published = self.values[CounterId.SAMPLED_OUT], self.published
            dropped, highest = self.dropped, self._highest()
            seen = self.values[CounterId.SEEN]
            return ProducerReport(
                producer=self.producer,
                reporter=self.producer,
                number=self.values[CounterId.REPORTS],
                booted_at=datetime.fromtimestamp(self.values[CounterId.BOOTED] / 1e6, UTC),
                reported_at=datetime.now(UTC),
                seen=seen,
                sampled_out=sampled_out,
                dropped=dropped,
                queued=max(0, seen - sampled_out - sum(dropped.values()) - published),
                spooled=self.values[CounterId.SPOOLED],
                published=published,
                events=self.values[CounterId.EVENTS],
                highest_sequence=highest,
                final=final,
            )

    def _highest(self) -> int:
        return self.values[CounterId.USED] + self._refused

    @property
    def _refused(self) -> int:
        return sum(self.values[CounterId.REFUSED : CounterId.REFUSED + len(REASONS)])

    @property
    def _handed(self) -> int:
        """Exchanges that the capture process has, or is to get."""
        return self.values[CounterId.SEEN] - self._refused


def _count_drop(reason: str, count: int) -> None:
    CAPTURES.labels("dropped").inc(count)
    CAPTURES_DROPPED.labels(reason).inc(count)


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

    @property
    def freed(self) -> int:
        """Bytes that the capture process has freed since the start."""
        return self._values[CounterId.FREED]

    @property
    def behind(self) -> int:
        """Bytes that were handed over and are not free yet."""
        return self._values[CounterId.HANDED] - self._values[CounterId.FREED]

    @property
    def is_away(self) -> bool:
        """True if a server is unavailable, without which nothing becomes free."""
        return bool(self._values[CounterId.IS_AWAY])

    def hand(self, size: int) -> None:
        """Count bytes as handed over, in the serving process."""
        self._values[CounterId.HANDED] += size

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
