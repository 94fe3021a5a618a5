"""The tests of Citus: where they run, and the message if they do not."""

from pathlib import Path

import pytest

from tests.runs.citus import LEFT_OUT, SELECTED, main
from tests.servers.environment import TEST_CITUS
from tests.servers.versions import MissingServer

ROOT = Path(__file__).parents[3]


def raise_missing() -> Path:
    raise MissingServer("Citus is installed beside no Postgres here")


def make_command(folder: Path) -> list[str]:
    """A command that writes down what it was given."""
    return [str(folder), "sh", "-c", f'echo "${TEST_CITUS}" "$@" >{folder}/given; exit 5', "sh"]


def test_selected_tests_exist() -> None:
    assert [path for path in SELECTED if not (ROOT / path).exists()] == []


def test_says_that_there_is_no_citus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(TEST_CITUS, raising=False)
    assert main(make_command(tmp_path), find=raise_missing) == 0
    assert capsys.readouterr().out == (
        "NOT RUN on Citus: Citus is installed beside no Postgres here,"
        f" and {TEST_CITUS} names no cluster.\n"
    )
    assert not (tmp_path / "given").exists()


def test_uses_a_configured_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TEST_CITUS, "postgresql://coordinator/store")
    assert main(make_command(tmp_path), find=raise_missing) == 5
    given = (tmp_path / "given").read_text()
    left_out = (f"--deselect={test}" for test in LEFT_OUT)
    assert (
        given.split() == " ".join(["postgresql://coordinator/store", *left_out, *SELECTED]).split()
    )


def test_the_folder_installs_it_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TEST_CITUS, raising=False)
    build = tmp_path / "build.sh"
    build.write_text(f"#!/bin/sh\ntouch {tmp_path}/built\n")
    build.chmod(0o755)
    assert main(make_command(tmp_path), find=lambda: (tmp_path / "built").resolve(strict=True)) == 5
    assert (tmp_path / "given").read_text().split()[0] == "own"
