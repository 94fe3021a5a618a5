"""One measurement: the load against a port, and the CPU of what stands there."""

import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import psutil

from .placing import place

Pids = Callable[[], Sequence[int]]
Figures = Mapping[str, Any]


class Loading:
    """A load that runs."""

    def __init__(self, workload: str, port: int, cores: frozenset[int], **options: float) -> None:
        command = [sys.executable, "-m", "benchmarks.proxy.load", workload, str(port)]
        for name, value in options.items():
            command += [f"--{name}", str(value)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        place([self._process.pid], cores)

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def result(self) -> Figures:
        """Its figures, once it is over. Raises RuntimeError where it ended with an error."""
        said, _ = self._process.communicate()
        if self._process.returncode:
            raise RuntimeError("the load ended with an error: see above")
        return dict(json.loads(said))


def measured(
    workload: str, port: int, cores: frozenset[int], pids: Pids, **options: float
) -> Figures:
    """Run the load; its figures, with the CPU of `pids`: microseconds a call, share of a core."""
    before = _spent(pids)
    found = Loading(workload, port, cores, **options).result()
    spent = _spent(pids) - before
    if found["failed"]:
        print(f"    {found['failed']} calls failed", flush=True)
    calls = max(found["answered"], 1)
    return {**found, "cpu": 1e6 * spent / calls, "share of a core": spent / found["elapsed"]}


def _spent(pids: Pids) -> float:
    """Seconds of CPU of processes that do not come and go."""
    times = [psutil.Process(pid).cpu_times() for pid in pids()]
    return sum(each.user + each.system for each in times)
