"""Follows the tutorial: runs its commands in order, and compares what they print with the page."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

PAGE = Path(__file__).parents[2] / "docs" / "tutorial" / "first-hour.md"
_BLOCK = re.compile(r"^```(sh|json|text)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_SECONDS = 600


class Step(NamedTuple):
    """A command, and what the page shows as its output; empty if it shows nothing."""

    command: str
    output: str


def read_steps(page: str) -> Iterator[Step]:
    """Yield each command of a page with the output that follows it."""
    blocks = [(kind, text) for kind, text in _BLOCK.findall(page)]
    for number, (kind, text) in enumerate(blocks):
        after = blocks[number + 1] if number + 1 < len(blocks) else ("sh", "")
        if kind == "sh":
            yield Step(text, "" if after[0] == "sh" else after[1])


def follow(api: str, proxy: str, folder: Path) -> None:
    """Run each step beside a demo whose data lie in a folder. Raise AssertionError for the first
    that fails or prints something else."""
    (folder / ".venv").mkdir()
    (folder / ".venv" / "bin").symlink_to(Path(sys.executable).parent)
    first, *steps = read_steps(PAGE.read_text())
    assert first.command == "API=http://127.0.0.1:8080\nPROXY=http://127.0.0.1:8090\n"
    for step in steps:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", step.command],
            cwd=folder,
            env=os.environ | {"API": api, "PROXY": proxy},
            timeout=_SECONDS,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,  # a terminal shows both
            text=True,
            check=False,
        )
        is_right = done.returncode == 0 and is_shown(step.output, done.stdout)
        assert is_right, f"{step.command}\n{done.stdout}"


def is_shown(expected: str, printed: str) -> bool:
    """Tell whether a page shows what was printed: all of a text, or a part of a JSON document."""
    if expected.startswith("{"):
        return is_part(json.loads(expected), json.loads(printed))
    return not expected or is_part(expected.strip(), printed.strip())


def is_part(expected: Any, actual: Any) -> bool:
    """Tell whether a value is the real one; it may lack members and last items, `…` is any text."""
    match expected, actual:
        case dict(), dict():
            return all(
                key in actual and is_part(value, actual[key]) for key, value in expected.items()
            )
        case list(), list():
            return len(expected) <= len(actual) and all(map(is_part, expected, actual))
        case str(), str():
            return re.fullmatch(".*".join(map(re.escape, expected.split("…"))), actual) is not None
    return bool(expected == actual)
