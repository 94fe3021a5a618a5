"""`python -m tests.runs.steps NAME COMMAND...` runs one step and records its time and exit code.

The record is appended to the file that INFERENCE_STORE_TEST_STEPS names, if any. With
INFERENCE_STORE_TEST_REPEAT=1 a step of pytest in which at most two tests failed is repeated once
for these tests alone; tests.runs.flakes says what then becomes of them.
`python -m tests.runs.steps --table` prints what the file holds, `--sum TITLE` one line of it.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypedDict

from tests.runs.flakes import Flake, describe_load, report_flakes

STEPS = "INFERENCE_STORE_TEST_STEPS"
REPEAT = "INFERENCE_STORE_TEST_REPEAT"
FAILURES = "INFERENCE_STORE_TEST_FAILURES"
_FORMAT = "{:<24} {:>8} {:>8}  {}"
_SOME_FAILED = 1
_MOST_REPEATED = 2


class Step(TypedDict):
    name: str
    seconds: float
    cpu_seconds: float
    code: int


def run(name: str, command: Sequence[str]) -> int:
    """Run a command, record the time that it took, and return its exit code."""
    started = time.monotonic()
    code = _run_repeating(command) if os.environ.get(REPEAT) == "1" else _run(command)
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


def _run(command: Sequence[str], **environment: str) -> int:
    return subprocess.run(command, env=os.environ | environment, check=False).returncode


def _run_repeating(command: Sequence[str]) -> int:
    with tempfile.NamedTemporaryFile(prefix="inference-store-failures-") as noted:
        code = _run(command, **{FAILURES: noted.name})
        lines = Path(noted.name).read_text()
    failures = [json.loads(line) for line in lines.splitlines()]
    repeatable = all(failure["repeatable"] for failure in failures)
    if code == _SOME_FAILED and repeatable and 0 < len(failures) <= _MOST_REPEATED:
        load = describe_load()
        tests = [failure["test"] for failure in failures]
        print(f"repeated once, alone: {' '.join(tests)}", flush=True)
        repeated = [*command[: command.index("pytest") + 1], "-n", "0", "-q", *tests]
        if _run(repeated) == 0:
            flakes = [Flake.make(test=f["test"], reason=f["reason"], load=load) for f in failures]
            return report_flakes(flakes)
    if path := os.environ.get(FAILURES):
        with Path(path).open("a") as file:
            file.write(lines)
    return code


def table(steps: Iterable[Step]) -> Iterable[str]:
    """Yield one line for each step, in order."""
    yield _FORMAT.format("step", "seconds", "CPU", "")
    for step in steps:
        end = "" if step["code"] == 0 else f"FAILED (exit {step['code']})"
        times = f"{step['seconds']:.0f}", f"{step['cpu_seconds']:.0f}"
        yield _FORMAT.format(step["name"], *times, end)


def add_up(title: str, steps: Sequence[Step]) -> str:
    """Return one line: what ran, and what failed."""
    failed = [step["name"] for step in steps if step["code"]]
    end = f"FAILED: {', '.join(failed)}" if failed else "all passed"
    return f"{title}: {', '.join(step['name'] for step in steps)}; {end}"


def main(arguments: Sequence[str]) -> int:
    if arguments[0] in {"--table", "--sum"}:
        lines = Path(os.environ[STEPS]).read_text().splitlines()
        steps: list[Step] = [json.loads(line) for line in lines]
        print("\n".join(table(steps)) if arguments[0] == "--table" else add_up(arguments[1], steps))
        return 0
    name, *command = arguments
    return run(name, command)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
