"""Another caller, in a process of its own: it asks for pages, one after the other.

`python -m benchmarks.export.neighbour ADDRESS PATH` asks until its input ends, and prints the
seconds that each page took.
"""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import quantiles

import httpx

_PAGE = {"limit": 50, "include": ["metadata", "predictions"]}


@dataclass(slots=True)
class Neighbour:
    """Another caller: the seconds that its pages took."""

    seconds: list[float] = field(default_factory=list)

    @property
    def p99_ms(self) -> float:
        """Return the 99th percentile in milliseconds."""
        return 1000 * quantiles(self.seconds, n=100)[98]


@contextmanager
def ask_beside(address: str, path: str) -> Iterator[Neighbour]:
    """Let another caller ask while the block runs; its seconds are known afterwards."""
    neighbour = Neighbour()
    command = [sys.executable, "-m", "benchmarks.export.neighbour", address, path]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()  # it has begun
        yield neighbour
        printed, _ = process.communicate()
        neighbour.seconds += json.loads(printed)


def main() -> None:
    """Ask until the input ends."""
    address, path = sys.argv[1:]
    stop = threading.Event()

    def wait_for_end() -> None:
        sys.stdin.read()
        stop.set()

    threading.Thread(target=wait_for_end, daemon=True).start()
    seconds = []
    with httpx.Client(base_url=address, timeout=60) as client:
        client.post(path, json=_PAGE).raise_for_status()
        print(flush=True)
        while not stop.is_set():
            began = time.perf_counter()
            client.post(path, json=_PAGE).raise_for_status()
            seconds.append(time.perf_counter() - began)
    print(json.dumps(seconds))


if __name__ == "__main__":
    main()
