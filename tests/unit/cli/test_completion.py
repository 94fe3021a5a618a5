"""A shell completes commands and options, by the script that `completion` prints."""

import shutil
import subprocess
from pathlib import Path

import pytest

from inference_store.cli.main import CLIENT_COMMANDS, COMMANDS, main

# Completes the words after the script's path as bash does at Tab, the last of them being typed.
_TAB = """
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
complete -p inference-store >/dev/null
_shtab_inference_store inference-store "${@: -1}" "${@: -2:1}"
printf '%s\\n' "${COMPREPLY[@]}"
"""


def print_script(shell: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["completion", shell]) == 0
    return capsys.readouterr().out


def test_bash_completes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bash_script = tmp_path / "completion"
    bash_script.write_text(print_script("bash", capsys))
    for typed, completed in (
        (["pro"], {"proxy"}),
        (["re"], {"resume", "retention", "reconcile"}),
        (["migrate", "--ch"], {"--check"}),
        (["keys", "cr"], {"create"}),
        (["tail", "--no"], {"--no-follow"}),
        (["keys", "create", "--ro"], {"--role"}),
        (["keys", "create", "--role", "own"], {"owner"}),
    ):
        words = ["bash", "-c", _TAB, "tab", str(bash_script), "inference-store", *typed]
        done = subprocess.run(words, capture_output=True, text=True, check=True)
        assert set(done.stdout.split()) == completed, typed


def test_every_command_is_there_and_the_shell_can_read_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for shell in ("bash", "zsh", "fish"):
        script = tmp_path / shell
        script.write_text(print_script(shell, capsys))
        output = script.read_text()
        assert not [name for name in {**COMMANDS, **CLIENT_COMMANDS} if name not in output], shell
        if shutil.which(shell):
            subprocess.run([shell, "-n", str(script)], check=True)
