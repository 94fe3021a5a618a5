"""One measurement: the load against a port, and the CPU of what stands there."""

import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import psutil

from .cores import pin

Pids = Callable[[], Sequence[int]]
Figures = Mapping[str, Any]


class RunningLoad:
    """A load that runs."""

    def __init__(self, workload: str, port: int, cores: frozenset[int], **options: float) -> None:
        command = [sys.executable, "-m", "benchmarks.proxy.load", workload, str(port)]
        for name, value in options.items():
            command += [f"--{name}", str(value)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        pin([self._process.pid], cores)

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def result(self) -> Figures:
        """Return its figures, once it is over. Raises RuntimeError where it ended with an error."""
        output, _ = self._process.communicate()
        if self._process.returncode:
            raise RuntimeError("the load ended with an error: see above")
        return dict(json.loads(output))


def measure(
    workload: str, port: int, cores: frozenset[int], pids: Pids, **options: float
) -> Figures:
    """Run the load; its figures, with the CPU of `pids`: microseconds a call, share of a core."""
    before = _read_cpu_seconds(pids)
    figures = RunningLoad(workload, port, cores, **options).result()
    spent = _read_cpu_seconds(pids) - before
    if figures["failed"]:
        print(f"    {figures['failed']} calls failed", flush=True)
    calls = max(figures["answered"], 1)
    return {**figures, "cpu": 1e6 * spent / calls, "share of a core": spent / figures["elapsed"]}


def _read_cpu_seconds(pids: Pids) -> float:
    """Seconds of CPU of processes that do not come and go."""
    times = [psutil.Process(pid).cpu_times() for pid in pids()]
    return sum(cpu_times.user + cpu_times.system for cpu_times in times)
