"""Every line of the threat model is held by a test that exists."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "explanation" / "threat-model.md"


def test_a_line_names_tests_that_exist() -> None:
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    rows = [line.strip("|").split(" | ") for line in lines if not line.startswith("| threat ")]
    assert len(rows) > 30
    for row in rows:
        tests = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", row[-1])
        assert (len(row), bool(tests)) == (3, True), row
        for path, name in tests:
            functions = re.findall(r"^(?:async )?def (\w+)", (ROOT / path).read_text(), re.M)
            assert name in functions, f"{path} has no {name}"
