"""The Python that is supported: one range, and what is outside of it is refused in a sentence."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
_BOUNDS = re.fullmatch(r">=3\.(\d+),<3\.(\d+)", _PROJECT["requires-python"])
assert _BOUNDS
OLDEST, NEWEST = int(_BOUNDS[1]), int(_BOUNDS[2]) - 1


def test_the_makefile_has_the_bounds_of_the_package() -> None:
    makefile = (ROOT / "Makefile").read_text()
    assert f"\nOLDEST := {OLDEST}\nNEWEST := {NEWEST}\n" in makefile


@pytest.mark.parametrize("name", ["README.md", "Makefile", "Dockerfile"])
def test_names_the_supported_range(name: str) -> None:
    assert f"Python 3.{OLDEST} to 3.{NEWEST}" in (ROOT / name).read_text()


@pytest.mark.parametrize("minor", [OLDEST - 1, NEWEST + 1])
def test_another_python_is_refused_in_a_sentence(minor: int, tmp_path: Path) -> None:
    python = tmp_path / "python3"
    code = f"import sys; sys.version_info = (3, {minor}, 0); exec(sys.argv[1])"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{code}" "$2"\n')
    python.chmod(0o755)
    bin_folder = tmp_path / "bin"
    command = [
        "make",
        "-s",
        "-C",
        str(ROOT),
        f"BIN={bin_folder}",
        f"PYTHON={python}",
        f"{bin_folder}/pip",
    ]
    done = subprocess.run(
        command, env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stdout == (
        f"{python} is not Python 3.{OLDEST} to 3.{NEWEST}: "
        f"say make PYTHON=python3.{OLDEST}, or another of these.\n"
    )
