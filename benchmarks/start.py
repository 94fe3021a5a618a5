"""`make bench-start`: what CPU a start of each service takes before it does anything.

Two figures each: importing its command, and `inference-store <service> --help`, which is the whole
start but for settings and servers, without the garbage collector, as every start is. Bytecode is
made before, as an installation has it.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

from .machine import machine

_SERVICES = ("api", "ingester", "retention", "proxy")
_PYTHON_PATH = Path(__file__).parents[1] / "services"


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5, help="starts of each")
    runs: int = parser.parse_args().runs
    description = machine()
    print(", ".join(f"{name} {value}" for name, value in description.items()), end=".\n\n")
    print("| service | import s, median | minimum | `--help` s, median | minimum |")
    print("|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as bytecode:
        environment = _environment(bytecode)
        for service in _SERVICES:
            ways = (
                ["-c", f"import inference_store.cli.{service}"],
                ["-m", "inference_store.cli.main", service, "--help"],
            )
            cells = [_format_seconds(_measure(way, environment, runs)) for way in ways]
            print(f"| {service} | {' | '.join(cells)} |", flush=True)


def _environment(bytecode: str) -> dict[str, str]:
    """Return ours, but that bytecode is written, and is read from a folder of its own."""
    inherited = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    return inherited | {"PYTHONPATH": str(_PYTHON_PATH), "PYTHONPYCACHEPREFIX": bytecode}


def _measure(way: Sequence[str], environment: Mapping[str, str], runs: int) -> list[float]:
    """CPU seconds of each run; one before them makes the bytecode."""
    return [_cpu_seconds(way, environment) for _ in range(runs + 1)][1:]


def _cpu_seconds(way: Sequence[str], environment: Mapping[str, str]) -> float:
    """User and system time of one interpreter."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, *way], env=dict(environment), stdout=subprocess.DEVNULL, check=True
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _format_seconds(seconds: Sequence[float]) -> str:
    return f"{median(seconds):.2f} | {min(seconds):.2f}"


if __name__ == "__main__":
    main()
