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


@pytest.fixture
def bash_script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    path = tmp_path / "completion"
    path.write_text(print_script("bash", capsys))
    return path


def print_script(shell: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["completion", shell]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        (["pro"], {"proxy"}),
        (["re"], {"resume", "retention", "reconcile"}),
        (["migrate", "--ch"], {"--check"}),
        (["keys", "cr"], {"create"}),
        (["tail", "--no"], {"--no-follow"}),
        (["keys", "create", "--ro"], {"--role"}),
        (["keys", "create", "--role", "own"], {"owner"}),
    ],
)
def test_bash_completes(typed: list[str], completed: set[str], bash_script: Path) -> None:
    words = ["bash", "-c", _TAB, "tab", str(bash_script), "inference-store", *typed]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) == completed


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_command_is_there(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    output = print_script(shell, capsys)
    assert [name for name in {**COMMANDS, **CLIENT_COMMANDS} if name not in output] == []


@pytest.mark.parametrize("shell", [name for name in ("bash", "zsh", "fish") if shutil.which(name)])
def test_the_shell_can_read_it(
    shell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "script").write_text(print_script(shell, capsys))
    subprocess.run([shell, "-n", str(tmp_path / "script")], check=True)
