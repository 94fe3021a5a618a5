"""A test that failed is repeated once, alone, and the run reports it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.runs.flakes import Flake, find_refusals
from tests.runs.steps import REPEAT

ROOT = Path(__file__).parents[3]
_LATE = """\
import pathlib
import pytest
ran = pathlib.Path(__file__).with_name("ran")

def test_late():
    first = not ran.exists()
    ran.touch()
    assert not first
"""
_WRONG = "\ndef test_wrong():\n    assert 1 == 2\n"
_KILLED = "\npytestmark = pytest.mark.kills\n"


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        (_LATE, 0, "FLAKE, a line for tests/flakes.tsv: "),
        (_LATE + _WRONG, 1, "test_wrong failed: assert 1 == 2"),
        (_LATE + _KILLED, 1, "assert not True"),
    ],
    ids=["a failure that does not come back", "beside a wrong answer", "after a kill"],
)
def test_a_failure_is_repeated_once_but_not_after_a_kill(
    text: str, code: int, said: str, tmp_path: Path
) -> None:
    (tmp_path / "test_some.py").write_text(text)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = kills\n")
    # Its steps, failures and flakes are none of the run's around it.
    outer = ("PYTEST", "INFERENCE_STORE_TEST")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(outer)}
    environment = inherited | {
        REPEAT: "1",
        "PYTHONPATH": str(ROOT),
        "PYTEST_ADDOPTS": "-p tests.runs.plugin -p no:cacheprovider -o filterwarnings=ignore",
    }
    pytest_command = [sys.executable, "-m", "pytest", "-q", "test_some.py"]
    ended = subprocess.run(
        [sys.executable, "-m", "tests.runs.steps", "unit", *pytest_command],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == code, ended.stdout + ended.stderr
    assert said in ended.stdout
    assert ("repeated once, alone" in ended.stdout) == (_KILLED not in text)
    # A failure is reported at once, before pytest's own section.
    assert ended.stdout.index("test_late failed: ") < ended.stdout.index("= FAILURES =")


def test_a_test_that_is_flaky_again_or_a_third_open_line_is_refused() -> None:
    first, second, third = (
        Flake.read(f"2026-11-01\tabc\ttests/a.py::test_{name}\tlate\t9.0\tfixed\t")
        for name in "xyz"
    )
    cured = Flake.read(first.write() + "def")
    assert find_refusals([], [first, second]) == []
    assert find_refusals([cured, second], [third]) == []
    assert find_refusals([cured], [first]) == ["tests/a.py::test_x is flaky again"]
    assert find_refusals([first, second, third]) == [
        "3 flaky tests are open: make them deterministic first"
    ]
    with pytest.raises(ValueError, match="2 cells, not 7"):
        Flake.read("a\tb")


# No test measures real time, gives the product a fraction of a second, or sleeps.
#
# A machine may stand still for seconds. docs/how-to/tests.md says what a test does instead.

TESTS = Path(__file__).parents[2]
_REAL_TIME = re.compile(
    r"(monotonic|perf_counter)\(\) ?-"
    r"|\btimeout=0?\.\d"
    # 30 seconds and more stand for what hangs for ever; a pause is between turns of a loop.
    r"|\bsleep\((?!0\)|[3-9]\d\b|\d{3,}|_?(HANG|PAUSE)_SECONDS|2 \* DEADLINE)"
)
_DEFINITION = re.compile(r"def \w*sleep\(")
# A path in tests, and what it does instead of waiting.
ALLOWED = {
    "servers": "polls with a deadline, and says how long an installation took",
    "runs": "says how long a step took",
    "chart/e2e": "polls a cluster, and prints how long a release took",
    "mutations/mutants.py": "polls a child with a deadline",
    "polling.py": "polls with a deadline",
    "demo_process.py": "polls with a deadline",
    "collector.py": "hangs as long as a test says",
    "e2e/faults": "paces what goes on beside kills, or chooses the moment of a kill",
}


def test_no_test_depends_on_real_time() -> None:
    found, used = [], set()
    for path in sorted(TESTS.rglob("*.py")):
        inner = path.relative_to(TESTS)
        lines = enumerate(path.read_text().splitlines(), 1)
        places = [n for n, x in lines if _REAL_TIME.search(x) and not _DEFINITION.search(x)]
        allowed = {name for name in ALLOWED if inner.is_relative_to(name)} if places else set()
        used |= allowed
        found += [] if allowed else [f"tests/{inner}:{number}" for number in places]
    assert found == []
    assert ALLOWED.keys() == used
