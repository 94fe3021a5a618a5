"""Tests that share a fixture of their file run on one worker."""

import os
import subprocess
import sys
from pathlib import Path

_TESTS = """\
import os
import pathlib
import pytest

@pytest.fixture(scope="module")
def server():
    pathlib.Path(__file__).with_name(f"started-{os.getpid()}").touch()

@pytest.mark.parametrize("number", range(8))
def test_it(server, number):
    pass
"""


def test_a_fixture_of_a_file_is_made_once_in_a_run_with_workers(tmp_path: Path) -> None:
    tests = tmp_path / "test_shared.py"
    tests.write_text(_TESTS)
    options = ["-q", "-c", "/dev/null", "-p", "tests.runs.groups", "-p", "no:cacheprovider"]
    workers = ["-p", "xdist", "-n", "2", "--dist", "loadgroup"]
    command = [sys.executable, "-m", "pytest", *options, *workers, str(tests)]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST")}
    run = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert "8 passed" in run.stdout, run.stdout + run.stderr
    assert len(list(tmp_path.glob("started-*"))) == 1
