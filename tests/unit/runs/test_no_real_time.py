"""No test measures real time, gives the product a fraction of a second, or sleeps.

A machine may stand still for seconds. docs/how-to/tests.md says what a test does instead.
"""

import re
from pathlib import Path

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
