"""`python -m tests.runs.steps NAME COMMAND...` runs one step and records its time and exit code.

The record is appended to the file that INFERENCE_STORE_TEST_STEPS names, if any.
`python -m tests.runs.steps --table` prints what the file holds.
"""

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypedDict

STEPS = "INFERENCE_STORE_TEST_STEPS"
_FORMAT = "{:<24} {:>8} {:>8}  {}"


class Step(TypedDict):
    """One command of a run."""

    name: str
    seconds: float
    cpu_seconds: float
    code: int


def run(name: str, command: Sequence[str]) -> int:
    """Run a command, record the time that it took, and return its exit code."""
    started = time.monotonic()
    code = subprocess.run(command, check=False).returncode
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    step = Step(
        name=name,
        seconds=time.monotonic() - started,
        cpu_seconds=used.ru_utime + used.ru_stime,
        code=code,
    )
    if path := os.environ.get(STEPS):
        with Path(path).open("a") as file:
            file.write(json.dumps(step) + "\n")
    return code


def table(steps: Iterable[Step]) -> Iterable[str]:
    """Yield one line for each step, in order."""
    yield _FORMAT.format("step", "seconds", "CPU", "")
    for step in steps:
        end = "" if step["code"] == 0 else f"FAILED (exit {step['code']})"
        times = f"{step['seconds']:.0f}", f"{step['cpu_seconds']:.0f}"
        yield _FORMAT.format(step["name"], *times, end)


def main(arguments: Sequence[str]) -> int:
    """Run a step or print the table, as the arguments say."""
    if list(arguments) == ["--table"]:
        lines = Path(os.environ[STEPS]).read_text().splitlines()
        print("\n".join(table(json.loads(line) for line in lines)))
        return 0
    name, *command = arguments
    return run(name, command)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
