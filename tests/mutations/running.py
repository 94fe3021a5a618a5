"""Running the tests against a copy of the product that has a mutant in it."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.servers.running import STARTS
from tests.servers.sharing import SharedServers
from tests.warm.process import COLD

from .mutant import ROOT, Mutant
from .noting import FAILED

_PYTEST = (
    *(sys.executable, "-m", "pytest"),
    *("-p", "tests.mutations.noting"),
    "-q",
    "--no-header",
)
# A mutant may make a test wait for ever.
_SECONDS_A_TEST = 300
_SOME_FAILED = 1


@dataclass(frozen=True, slots=True)
class Failure:
    """The first test that fails, and why."""

    test: str
    reason: str


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a mutant; `caught` None: no test detected it, or `problem` says why not."""

    mutant: Mutant
    caught: Failure | None
    problem: str = ""


@contextmanager
def shared_servers() -> Iterator[None]:
    """Run one set of servers for all mutants. A warm process would have imported the product."""
    with SharedServers({name: start for name, start in STARTS.items() if name != "warm"}):
        yield


def try_mutant(mutant: Mutant, *, log: Path) -> Result:
    """Run the tests of a mutant. Raise NotOnce if it cannot be put in."""
    with tempfile.TemporaryDirectory(prefix="inference-store-mutant-") as folder:
        root = Path(folder)
        shutil.copytree(
            ROOT / "services", root / "services", ignore=shutil.ignore_patterns("__pycache__")
        )
        (root / "migrations").symlink_to(ROOT / "migrations")
        mutant.apply(root)
        options = ("--faults", "-m", "faults or kills") if mutant.command == "faults" else ()
        code, failed = _run(root, "-x", *options, *mutant.tests, log=log)
    if failed:
        return Result(mutant, failed[0])
    if code == 0:
        return Result(mutant, None, "no test fails")
    return Result(mutant, None, f"pytest ended with {code} and no test failed: see {log}")


def confirm_results(results: Collection[Result], *, log: Path) -> list[Result]:
    """Return the results whose failing tests pass without the mutant; others get a problem."""
    tests = sorted({result.caught.test for result in results if result.caught})
    failed = _run(ROOT, "--faults", *tests, log=log)[1] if tests else []
    broken = {failure.test for failure in failed}
    problem = f"the test fails without the mutant: see {log}"
    return [
        Result(result.mutant, None, problem)
        if result.caught and result.caught.test in broken
        else result
        for result in results
    ]


def _run(root: Path, *arguments: str, log: Path) -> tuple[int, list[Failure]]:
    """Run pytest with the product of this tree. Return its exit code and the failures."""
    with tempfile.NamedTemporaryFile(prefix="inference-store-failed-") as noted:
        environment = {
            **os.environ,
            COLD: "1",
            FAILED: noted.name,
            "PYTHONPATH": str(root / "services"),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        command = [*_PYTEST, "-p", "no:cacheprovider", f"-otimeout={_SECONDS_A_TEST}", *arguments]
        with log.open("w") as output:
            ended = subprocess.run(
                command, cwd=ROOT, env=environment, stdout=output, stderr=output, check=False
            )
        lines = Path(noted.name).read_text().splitlines()
    return ended.returncode, [Failure(*json.loads(line)) for line in lines]
