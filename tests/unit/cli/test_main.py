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


def end_command(*arguments: str) -> int | str | None:
    """Return with which code a command ends that does nothing else."""
    with pytest.raises(SystemExit) as end:
        main(arguments)
    return end.value.code


def test_garbage_is_collected_after_the_import() -> None:
    for command, status in (("proxy", 0), ("no-such-command", 2)):
        assert end_command(command, "--help") == status
        assert gc.isenabled()


def test_prints_its_version_and_settings(capsys: pytest.CaptureFixture[str]) -> None:
    assert end_command("--version") == 0
    assert capsys.readouterr().out == f"inference-store {version('inference-store')}\n"
    assert end_command("proxy", "--help") == 0
    assert "  INFERENCE_STORE_PROXY_PORT (default: 8090)\n" in capsys.readouterr().out


def test_a_reader_that_has_enough_ends_a_command_without_a_traceback() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "inference_store.cli.main", "completion", "bash"]
    ended = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writing)
    assert (ended.returncode, ended.stderr) == (141, "")


def test_what_cannot_be_meant_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for command, sentence in (
        ("doctor --deadline=0", "0 seconds are no time: write more than 0, such as 15"),
        ("ledger show --limit=-2", "'-2' is not 1 or more: write a whole number"),
        ("ledger show --limit=0", "'0' is not 1 or more: write a whole number"),
        ("ledger show --after=-5", "'-5' is not 0 or more: write a whole number"),
        ("keys create --everything --name=", "a name has 1 to 256 characters"),
        ("keys create --everything --name=\t", "a name has 1 to 256 characters"),
    ):
        assert end_command(*command.split(" ")) == 2, command
        assert sentence in capsys.readouterr().err, command


def test_seconds_are_refused_with_the_unit_and_an_example(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for option in ("doctor --deadline", "smoke --seconds", "migrate --wait-seconds"):
        for text in ("15s", "PT15S", "inf", "-1", ""):
            assert end_command(*f"{option}={text}".split(" ")) == 2, (option, text)
            sentence = f"{text!r} is no number of seconds: write a plain number, such as 15"
            assert sentence in capsys.readouterr().err, option
