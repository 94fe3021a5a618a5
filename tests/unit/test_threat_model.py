"""Every line of the threat model is held by a test that exists."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "explanation" / "threat-model.md").read_text()
ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in PAGE.splitlines()
    if line.startswith("| ") and not line.startswith("| threat ")
]


@cache
def list_names(path: str) -> frozenset[str]:
    """The test functions of a file."""
    functions = ast.FunctionDef | ast.AsyncFunctionDef
    tree = ast.parse((ROOT / path).read_text())
    return frozenset(node.name for node in tree.body if isinstance(node, functions))


def test_there_are_lines() -> None:
    assert len(ROWS) > 30


def test_a_line_names_tests_that_exist(subtests: pytest.Subtests) -> None:
    for row in ROWS:
        with subtests.test(row[0][:40]):
            assert len(row) == 3, row
            tests = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", row[2])
            assert tests, row
            for path, name in tests:
                assert name.startswith("test_")
                assert name in list_names(path), f"{path} has no {name}"
