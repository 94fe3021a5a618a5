"""Runs the tests of the proxy's wire on a server; a case has failed if it fails twice."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

from tests.runs.failures import FAILURES

from .cases_plugin import SERVER

_ROOT: Final = Path(__file__).parents[2]
_TESTS: Final = "tests/integration/proxy"
FILES: Final = tuple(
    f"{_TESTS}/test_{name}.py"
    for name in ("rest_forwarding", "rest_framing", "rest_broken_answers")
)
_LONGEST_REASON: Final = 160

Cases = Mapping[str, Mapping[str, str]]
"""Of each test, of each of its cases why it failed; "" if it passed."""


def run_cases(server: str, tests: Sequence[str] = FILES) -> Cases:
    """Run tests, and again those that failed."""
    cases = _run(server, tests)
    failed = [name for name, reason in cases.items() if reason]
    if failed:
        cases |= _run(server, [_find_file(tests, name) for name in failed])
    tables: dict[str, dict[str, str]] = {}
    for name, reason in cases.items():
        test, _, case = name.partition("::")[2].partition("[")
        tables.setdefault(test, {})[case.removesuffix("]")] = reason
    return tables


def _find_file(tests: Sequence[str], name: str) -> str:
    module, _, test = name.partition("::")
    file = next(each.partition("::")[0] for each in tests if f"/{module}.py" in each)
    return f"{file}::{test}"


def _run(server: str, tests: Sequence[str]) -> dict[str, str]:
    """Return by `module::test[case]` why it failed."""
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder, "results.xml")
        options = ("-q", "-W", "default", "--tb=line", "--timeout=60", f"--junit-xml={results}")
        plugin = ("-p", f"{__package__}.cases_plugin", "-p", "no:cacheprovider")
        ended = subprocess.run(
            [sys.executable, "-m", "pytest", *plugin, *options, *tests],
            # what fails here is a figure, not a failure of the run around it
            env={**os.environ, SERVER: server, FAILURES: ""},
            cwd=_ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        if ended.returncode not in (0, 1):
            raise RuntimeError(f"the cases did not run on {server}:\n{ended.stdout[-2000:]}")
        return _read_results(results)


def _read_results(results: Path) -> dict[str, str]:
    cases: dict[str, str] = {}
    for case in ElementTree.parse(results).iter("testcase"):
        module = case.attrib["classname"].rsplit(".", 1)[-1]
        wrong = [*case.iter("failure"), *case.iter("error")]
        reasons = [each.attrib.get("message", "").split("\n")[0] for each in wrong]
        name = f"{module}::{case.attrib['name']}"
        cases[name] = "; ".join(reason or "failed" for reason in reasons)[:_LONGEST_REASON]
    return cases
