"""`inference-store <command>` imports the parts of that command only."""

import gc
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version

import pytest

from inference_store.cli.main import main


@pytest.fixture(autouse=True)
def _thawed() -> Iterator[None]:
    yield
    gc.unfreeze()


@pytest.mark.parametrize(("command", "status"), [("proxy", 0), ("no-such-command", 2)])
def test_garbage_is_collected_after_the_import(command: str, status: int) -> None:
    with pytest.raises(SystemExit) as end:
        main([command, "--help"])
    assert end.value.code == status
    assert gc.isenabled()


def test_prints_its_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["--version"])
    assert end.value.code == 0
    assert capsys.readouterr().out == f"inference-store {version('inference-store')}\n"


def test_help_lists_a_services_settings(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["proxy", "--help"])
    assert end.value.code == 0
    assert "  INFERENCE_STORE_PROXY_PORT (default: 8090)\n" in capsys.readouterr().out


def test_a_reader_that_has_enough_ends_a_command_without_a_traceback() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "inference_store.cli.main", "completion", "bash"]
    ended = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writing)
    assert (ended.returncode, ended.stderr) == (141, "")


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        (("doctor", "--deadline=0"), "0 seconds are no time: write more than 0, such as 15"),
        (("ledger", "show", "--limit=-2"), "'-2' is not 1 or more: write a whole number"),
        (("ledger", "show", "--limit=0"), "'0' is not 1 or more: write a whole number"),
        (("ledger", "show", "--after=-5"), "'-5' is not 0 or more: write a whole number"),
        (("keys", "create", "--everything", "--name="), "a name has 1 to 256 characters"),
        (("keys", "create", "--everything", "--name= "), "a name has 1 to 256 characters"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    command: tuple[str, ...], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(command)
    assert end.value.code == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize("text", ["15s", "PT15S", "inf", "-1", ""])
@pytest.mark.parametrize(
    ("command", "option"),
    [("doctor", "--deadline"), ("smoke", "--seconds"), ("migrate", "--wait-seconds")],
)
def test_seconds_are_refused_with_the_unit_and_an_example(
    command: str, option: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main([command, f"{option}={text}"])
    assert end.value.code == 2
    sentence = f"{text!r} is no number of seconds: write a plain number, such as 15"
    assert sentence in capsys.readouterr().err
