"""Progress while pip installs, and pip's output if it fails."""

import io
import os
import subprocess
import sys
from pathlib import Path

from inference_store.local.demo.screen import Screen
from inference_store.local.installing import Progress, install

SERVICES = Path(__file__).parents[3] / "services"


def test_each_package_that_comes_is_shown(tmp_path: Path) -> None:
    shown_progress = Progress(most=3, folder=tmp_path)
    assert str(shown_progress) == "looking for 3 packages"
    shown_progress.see("Collecting opencv-python-headless==4.14.0 (from -r a.lock (line 3))\n")
    wheel = "  Downloading opencv_python_headless-4.14.0-abi3-x86_64.whl"
    shown_progress.see(f"{wheel}.metadata (20 kB)\n")
    assert shown_progress.fetched == 0
    shown_progress.see(f"{wheel} (60.1 MB)\n")
    shown_progress.see("  Using cached https://pypi.example/orjson-3.13-x86_64.whl (1.2 MB)\n")
    assert str(shown_progress) == "fetching: 2 of at most 3 packages, now orjson (1.2 MB)"
    shown_progress.see("Installing collected packages: a, b\n")
    (tmp_path / "a-1.dist-info").mkdir()
    assert str(shown_progress) == "unpacking: 1 of 2 packages"


def test_a_failure_quotes_pip(tmp_path: Path) -> None:
    lock = tmp_path / "a.lock"
    lock.write_text("no-such-folder @ file:///nowhere/no-such-folder\n")
    out = io.StringIO()
    assert install(lock, Screen(out)) != 0
    assert "ERROR" in out.getvalue()


def test_it_needs_nothing_that_is_installed(tmp_path: Path) -> None:
    code = "import inference_store.local.installing, sys; print(*sys.modules)"
    command = (sys.executable, "-S", "-c", code)
    environment = os.environ | {"PYTHONPATH": str(SERVICES)}
    modules = subprocess.check_output(command, env=environment, cwd=tmp_path, text=True)
    assert "inference_store.local.installing" in modules
