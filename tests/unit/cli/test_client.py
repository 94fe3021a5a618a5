"""The commands for users are those of the Python client, which need not be installed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from inference_store.cli.main import CLIENT_COMMANDS, main
from inference_store_client.command_line.main import COMMANDS

_SERVICES = Path(__file__).parents[3] / "services"


def test_the_sentences_are_those_of_the_client() -> None:
    assert CLIENT_COMMANDS.items() <= COMMANDS.items()


def test_a_command_has_the_clients_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    for name in CLIENT_COMMANDS:
        words = [name, "list"] if name == "exports" else [name]
        with pytest.raises(SystemExit) as end:
            main([*words, "--help"])
        assert end.value.code == 0, name
        output = capsys.readouterr().out
        assert output.startswith(f"usage: inference-store {' '.join(words)} ")
        assert "--url" in output, name


def test_without_the_client_the_remedy_is_named() -> None:
    hidden = "import sys; sys.modules['inference_store_client'] = None;"
    code = f"{hidden} from inference_store.cli.main import main; sys.exit(main(['count', 'm']))"
    ended = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": str(_SERVICES)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 1
    assert ended.stderr == (
        "`inference-store count` needs the Python client (inference_store_client is missing):"
        " python -m pip install ./client, in the source tree\n"
    )
