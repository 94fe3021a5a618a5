"""`python -m tests.mutations [NAME...]` breaks the product, and tests that the tests notice.

Each mutant is put into a copy of the services, and its tests run against that: one must fail. The
table of results goes to standard output, all else to standard error; the code is 1 if a mutant is
not detected.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from . import MUTANTS, Mutant
from .running import Result, confirm_results, shared_servers, try_mutant

_HEAD = "| Mutant | Promise that it breaks | Caught by | Command |\n|---|---|---|---|"


def main(arguments: Sequence[str]) -> int:
    """Try the named mutants, or all."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutations")
    parser.add_argument("names", nargs="*", metavar="NAME", help="default: all")
    names = parser.parse_args(arguments).names
    unknown = set(names) - {mutant.name for mutant in MUTANTS}
    if unknown:
        parser.error(f"there is no mutant {', '.join(sorted(unknown))}")
    with shared_servers():
        logs = Path(tempfile.mkdtemp(prefix="inference-store-mutations-"))
        results = [
            _describe_result(mutant, logs)
            for mutant in MUTANTS
            if not names or mutant.name in names
        ]
        results = confirm_results(results, log=logs / "without.log")
    missed = [result for result in results if result.caught is None]
    print(make_table(results))
    _say(f"{len(results) - len(missed)} of {len(results)} are caught; pytest's output: {logs}")
    for result in missed:
        _say(f"  {result.mutant.name}: NOT CAUGHT, {result.problem}")
    return 1 if missed else 0


def _describe_result(mutant: Mutant, logs: Path) -> Result:
    began = time.monotonic()
    result = try_mutant(mutant, log=logs / f"{mutant.name}.log")
    text = result.problem
    if result.caught is not None:
        text = f"{result.caught.test}\n    {result.caught.reason}"
    word = "NOT CAUGHT" if result.caught is None else "caught"
    _say(f"{mutant.name}: {word} in {time.monotonic() - began:.0f} s\n    {text}")
    return result


def make_table(results: Iterable[Result]) -> str:
    """Return the results as a table in Markdown."""
    lines = [_HEAD]
    for result in results:
        mutant, caught = result.mutant, result.caught
        by = "NOT CAUGHT" if caught is None else f"`{caught.test.partition('[')[0]}`"
        lines.append(f"| `{mutant.name}` | {mutant.promise} | {by} | `make {mutant.command}` |")
    return "\n".join(lines)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
