"""Each step of a run is noted with its time and its end, and the table shows them in order."""

import sys
from pathlib import Path

import pytest

from tests.runs import steps


def test_a_step_is_noted_and_its_code_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(steps.STEPS, str(tmp_path / "steps"))
    assert steps.main(["lint", sys.executable, "-c", "pass"]) == 0
    assert steps.main(["unit", sys.executable, "-c", "raise SystemExit(3)"]) == 3
    assert steps.main(["--table"]) == 0
    header, lint, unit = capsys.readouterr().out.splitlines()
    assert header.split() == ["step", "seconds", "CPU"]
    assert lint.split()[0] == "lint"
    assert unit.startswith("unit")
    assert unit.endswith("FAILED (exit 3)")


def test_without_the_variable_nothing_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(steps.STEPS, raising=False)
    assert steps.run("lint", [sys.executable, "-c", "raise SystemExit(1)"]) == 1
