"""Tests that failed, and passed when they were repeated alone.

`tests/flakes.tsv` has a line for each. A run prints the line to add, and fails if the file has the
same test already, or if three lines would be open: then no more work lands on top of them.
`python -m tests.runs.flakes` fails for the lines that are there.
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

FILE = Path(__file__).parents[1] / "flakes.tsv"
FLAKES = "INFERENCE_STORE_TEST_FLAKES"
"""The variable that names a file to append the same lines to, for the end of a longer run."""
_MOST_OPEN = 2


@dataclass(frozen=True, slots=True)
class Flake:
    """A line of the file; `cured` is empty, or the commit that made the test deterministic."""

    day: str
    commit: str
    test: str
    reason: str
    load: str
    seed: str
    cured: str = ""

    @classmethod
    def make(cls, *, test: str, reason: str, load: str) -> Self:
        """Return an open line of today and of the commit that is checked out."""
        command = ["git", "rev-parse", "--short=12", "HEAD"]
        commit = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
        day = datetime.now(UTC).date().isoformat()
        return cls(day, commit, test, " ".join(reason.split()), load, find_seed())

    @classmethod
    def read(cls, line: str) -> Self:
        """Return the flake of a line. Raises ValueError naming the columns."""
        cells = line.split("\t")
        names = [field.name for field in fields(cls)]
        if len(cells) != len(names):
            raise ValueError(f"{len(cells)} cells, not {len(names)} ({', '.join(names)}): {line}")
        return cls(*cells)

    def write(self) -> str:
        return "\t".join(astuple(self))


def describe_load() -> str:
    return f"{os.getloadavg()[0]:.1f}"


def find_seed() -> str:
    """Return the seed of the run: that of PYTHONHASHSEED, else the fixed ones of the tests."""
    return os.environ.get("PYTHONHASHSEED", "fixed")


def read_file(file: Path = FILE) -> list[Flake]:
    return [Flake.read(line) for line in file.read_text().splitlines()[1:]]


def find_refusals(known: Sequence[Flake], new: Sequence[Flake] = ()) -> list[str]:
    """Return why a run with these new flakes is refused; nothing if it is not."""
    tests = [flake.test for flake in (*known, *new)]
    refusals = [f"{test} is flaky again" for test in dict.fromkeys(tests) if tests.count(test) > 1]
    open_lines = [flake for flake in (*known, *new) if not flake.cured]
    if len(open_lines) > _MOST_OPEN:
        refusals.append(f"{len(open_lines)} flaky tests are open: make them deterministic first")
    return refusals


def report_flakes(new: Sequence[Flake]) -> int:
    """Print a line for each, and why the run is refused for them. Return 1 if it is."""
    refusals = find_refusals(read_file(), new)
    lines = [f"FLAKE, a line for tests/flakes.tsv: {flake.write()}" for flake in new] + refusals
    print("\n".join(lines), flush=True)
    if path := os.environ.get(FLAKES):
        with Path(path).open("a") as file:
            file.writelines(f"{line}\n" for line in lines)
    return 1 if refusals else 0


if __name__ == "__main__":
    sys.exit(report_flakes(()))
