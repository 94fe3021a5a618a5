"""The load: one process that sends calls and notes how long each took.

Closed (`--rate` not given): each slot asks again as soon as it was answered. Open: calls are due at
a steady rate whatever comes back, and a call's time runs from when it was due, not from when there
was a slot for it: a server that stalls is charged for all that waited (wrk is not, and knows no
gRPC). Prints one line of JSON.
"""

import argparse
import gc
import json
import select
import sys
import time
from array import array
from collections import deque
from dataclasses import dataclass, field

from benchmarks.results import percentile

from .connections import Broken, Connection, Http1
from .http2 import Http2
from .workloads import Workload, workloads

_LONGEST_WAIT = 10.0
_CONNECTIONS_OF_GRPC = 4


@dataclass(slots=True)
class Counts:
    """Calls that were due in the time that counts."""

    milliseconds: "array[float]" = field(default_factory=lambda: array("d"))
    failed: int = 0
    answered: int = 0
    """All that were, also while it warmed up."""


class Load:
    """One run over connections that are there already."""

    def __init__(
        self, connections: list[Connection], rate: float | None, warming: float, seconds: float
    ) -> None:
        self._by_fd = {connection.fd: connection for connection in connections}
        self._free = deque(
            connection for connection in connections for _ in range(connection.slots)
        )
        self._slots = len(self._free)
        self._rate = rate
        self._began = time.perf_counter()
        self._counts_from = self._began + warming
        self._until = self._counts_from + seconds
        self._number = 0
        self.counted = Counts()
        self.seconds = seconds

    def run(self) -> None:
        """Until the time is over and every call answered; what is not by then has failed."""
        while (now := time.perf_counter()) < self._until:
            self._wait(self._ask(now))
        given_up = self._until + _LONGEST_WAIT
        while len(self._free) < self._slots and time.perf_counter() < given_up:
            self._wait(0.05)
        self.counted.failed += self._slots - len(self._free)

    def _ask(self, now: float) -> float:
        """Send what is due; for how long nothing is."""
        if self._rate is None:
            while self._free:
                self._free.popleft().ask(now)
            return 0.05
        while (due := self._began + self._number / self._rate) <= now:
            if not self._free:
                return 0.05
            self._free.popleft().ask(due)
            self._number += 1
        return due - now

    def _wait(self, seconds: float) -> None:
        # select, and not epoll: its time-out is in microseconds
        writers = [fd for fd, candidate in self._by_fd.items() if candidate.writes]
        readable, writable, _ = select.select(self._by_fd, writers, (), seconds)
        for fd in writable:
            self._by_fd[fd].flush()
        for fd in readable:
            connection = self._by_fd[fd]
            for due, good in connection.answered():
                self._note(due, good)
                self._free.append(connection)

    def _note(self, due: float, good: bool) -> None:
        now = time.perf_counter()
        self.counted.answered += 1
        # closed, what counts is what was answered in time; open, what was due in time
        if due < self._counts_from or (self._rate is None and now > self._until):
            return
        if good:
            self.counted.milliseconds.append(1000 * (now - due))
        else:
            self.counted.failed += 1


def connect(work: Workload, port: int, slots: int) -> list[Connection]:
    """Connections with so many slots in all."""
    if work.transport == "rest":
        return [Http1(port, work) for _ in range(slots)]
    slots_each = slots // _CONNECTIONS_OF_GRPC
    return [Http2(port, work, slots_each) for _ in range(_CONNECTIONS_OF_GRPC)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workload", choices=list(workloads()))
    parser.add_argument("port", type=int)
    parser.add_argument("--rate", type=float, help="calls a second; without it as many as possible")
    parser.add_argument("--slots", type=int, default=32, help="calls at once, at most")
    parser.add_argument("--warming", type=float, default=1.0, help="seconds that do not count")
    parser.add_argument("--seconds", type=float, default=5.0, help="seconds that count")
    arguments = parser.parse_args()
    work = workloads()[arguments.workload]
    connections = connect(work, arguments.port, arguments.slots)
    # our own collections of garbage are not the server's
    gc.disable()
    load = Load(connections, arguments.rate, arguments.warming, arguments.seconds)
    try:
        load.run()
    except Broken as exc:
        sys.exit(f"{work.name} at port {arguments.port}: {exc}")
    elapsed = arguments.warming + arguments.seconds
    print(json.dumps({**_format_results(load), "elapsed": elapsed}))


def _format_results(load: Load) -> dict[str, float]:
    times = sorted(load.counted.milliseconds)
    return {
        "calls": len(times),
        "failed": load.counted.failed,
        "answered": load.counted.answered,
        "rate": len(times) / load.seconds,
        "p50": percentile(times, 0.5),
        "p99": percentile(times, 0.99),
        "longest": percentile(times, 1.0),
    }


if __name__ == "__main__":
    main()
