"""The frames that come through the socket: read at once and returned one by one, until the socket
ends or the time is up."""

import time
from queue import SimpleQueue

from .counts import Counts
from .frames import Reader, SentExchange
from .shared_counters import CounterId, SharedCounters
from .shutdown_deadline import final_report_seconds


class Arrivals:
    """The queue between the thread that reads and the one that decodes, bounded by the budget."""

    def __init__(
        self, reader: Reader, counters: SharedCounters, counts: Counts, *, grace_seconds: float
    ) -> None:
        """`grace_seconds`: how long the capture process goes on after the serving process has
        died."""
        self._reader, self._counters, self._counts = reader, counters, counts
        self._grace_seconds = grace_seconds
        self._came: SimpleQueue[SentExchange | None] = SimpleQueue()
        self._ended: float | None = None

    def read(self) -> None:
        """Queue exchanges until the socket ends; runs in a thread."""
        try:
            while (sent := self._reader.exchange()) is not None:
                self._counts.receive()
                self._came.put(sent)
        finally:
            self._ended = time.monotonic()
            self._came.put(None)

    def next(self) -> SentExchange | None:
        """Wait for the next exchange and return it; None if there are no more, or the time is
        up."""
        sent = self._came.get()
        return None if self.is_late else sent

    @property
    def were_cut_off(self) -> bool:
        """True if the serving process ended without setting a deadline."""
        return self._ended is not None and not self._counters.values[CounterId.DEADLINE]

    @property
    def deadline(self) -> float | None:
        """The monotonic time at which all work must have ended; None if no end is planned yet."""
        nanoseconds = self._counters.values[CounterId.DEADLINE]
        if nanoseconds:
            return nanoseconds / 1e9
        return None if self._ended is None else self._ended + self._grace_seconds

    @property
    def seconds_left(self) -> float:
        """Seconds until all work must have ended."""
        deadline = self.deadline
        return self._grace_seconds if deadline is None else max(0.0, deadline - time.monotonic())

    @property
    def is_late(self) -> bool:
        """True if only the time of the final report is left."""
        deadline = self.deadline
        reserved = final_report_seconds(self._grace_seconds)
        return deadline is not None and deadline - reserved < time.monotonic()
