"""`inference-store <command>` imports the parts of that command only, and lists its settings."""

import argparse
import gc
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest

from inference_store.cli.command import list_settings
from inference_store.cli.demo import add_arguments, describe_ignored, read_ports
from inference_store.cli.main import CLIENT_COMMANDS, COMMANDS, import_command, main
from inference_store.inference.field_docs import field_docs
from inference_store.platform.settings import GROUPS, PREFIX, ProxySettings
from inference_store_client.command_line import main as client


@pytest.fixture(autouse=True)
def _thawed() -> Iterator[None]:
    yield
    gc.unfreeze()


def end_command(*arguments: str) -> int | str | None:
    """Return with which code a command ends that does nothing else."""
    with pytest.raises(SystemExit) as end:
        main(arguments)
    return end.value.code


def test_prints_its_version_and_settings_and_those_of_the_client(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert end_command("--version") == 0
    assert capsys.readouterr().out == f"inference-store {version('inference-store')}\n"
    assert end_command("proxy", "--help") == 0
    assert "  INFERENCE_STORE_PROXY_PORT (default: 8090)\n" in capsys.readouterr().out
    assert CLIENT_COMMANDS.items() <= client.COMMANDS.items(), "the sentences are the client's"
    for name in CLIENT_COMMANDS:
        words = [name, "list"] if name == "exports" else [name]
        with pytest.raises(SystemExit) as end:
            main([*words, "--help"])
        assert end.value.code == 0, name
        output = capsys.readouterr().out
        assert output.startswith(f"usage: inference-store {' '.join(words)} ")
        assert "--url" in output, name


def test_a_reader_that_has_enough_and_a_missing_client_end_it() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "inference_store.cli.main", "completion", "bash"]
    ended = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writing)
    assert (ended.returncode, ended.stderr) == (141, "")
    hidden = "import sys; sys.modules['inference_store_client'] = None;"
    code = f"{hidden} from inference_store.cli.main import main; sys.exit(main(['count', 'm']))"
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3] / "services")}
    command = [sys.executable, "-c", code]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert ended.stderr == (
        "`inference-store count` needs the Python client (inference_store_client is missing):"
        " python -m pip install ./client, in the source tree\n"
    )


def test_what_cannot_be_meant_is_refused_with_an_example(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for command, sentence in (
        ("doctor --deadline=0", "it must be more than 0 seconds, such as 15"),
        ("ledger show --limit=-2", "'-2' is not a whole number of 1 or more"),
        ("ledger show --limit=0", "'0' is not a whole number of 1 or more"),
        ("ledger show --after=-5", "'-5' is not a whole number of 0 or more"),
        ("keys create --everything --name=", "a name must have 1 to 256 characters"),
        ("keys create --everything --name=\t", "a name must have 1 to 256 characters"),
    ):
        assert end_command(*command.split(" ")) == 2, command
        assert sentence in capsys.readouterr().err, command
    for option in ("doctor --deadline", "migrate --wait-seconds"):
        for text in ("15s", "PT15S", "inf", "-1", ""):
            assert end_command(*f"{option}={text}".split(" ")) == 2, (option, text)
            sentence = f"{text!r} is not a number of seconds, such as 15"
            assert sentence in capsys.readouterr().err, option


def parse(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args(arguments)


def test_the_command_line_wins_over_the_environment_and_ignores_the_rest() -> None:
    assert read_ports(parse(), {}) == {}
    environment = {"INFERENCE_STORE_API_PORT": "9000", "INFERENCE_STORE_PROXY_PORT": "9001"}
    assert read_ports(parse(), environment) == {"api": 9000, "proxy": 9001}
    assert read_ports(parse("--port", "9002"), environment) == {"api": 9002, "proxy": 9001}
    assert describe_ignored({"PATH": "/bin", "INFERENCE_STORE_API_PORT": "9000"}) == ""
    sentence = describe_ignored({"INFERENCE_STORE_POSTGRES_DSN": "postgresql://production/real"})
    assert "Ignored from your environment: INFERENCE_STORE_POSTGRES_DSN." in sentence
    assert "takes INFERENCE_STORE_API_PORT and INFERENCE_STORE_PROXY_PORT" in sentence
    assert "production" not in sentence


def test_names_the_setting_of_a_malformed_port(subtests: pytest.Subtests) -> None:
    for text in ("0", "65536", "http", "-1", "²"):
        refused = pytest.raises(argparse.ArgumentTypeError, match="INFERENCE_STORE_API_PORT")
        with subtests.test(text), refused:
            read_ports(parse(), {"INFERENCE_STORE_API_PORT": text})
        with subtests.test("option", text=text), pytest.raises(SystemExit):
            parse(f"--port={text}")


# Completes the words after the script's path as bash does at Tab, the last of them being typed.
_TAB = """
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
complete -p inference-store >/dev/null
_shtab_inference_store inference-store "${@: -1}" "${@: -2:1}"
printf '%s\\n' "${COMPREPLY[@]}"
"""


def test_bash_completes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bash_script = tmp_path / "completion"
    assert main(["completion", "bash"]) == 0
    bash_script.write_text(capsys.readouterr().out)
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


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")


def test_lists_every_setting_with_its_sentence_and_its_own_first() -> None:
    for group in GROUPS:
        text = list_settings(group)
        names = re.findall(rf"^  {PREFIX}([A-Z0-9_]+)", text, re.MULTILINE)
        assert sorted(names) == sorted(name.upper() for name in group.model_fields), group
        words = " ".join(text.split())
        assert all(doc in words for doc in field_docs(group).values()), group
    text = list_settings(ProxySettings)
    numbers = ("PROXY_PORT (default: 8090)", "PROXY_GRACE_SECONDS (default: 20)")
    for line in (*numbers, "PROXY_UPSTREAM", "S3_SECRET_KEY", "LOG_LEVEL (default: info)"):
        assert f"  {PREFIX}{line}\n" in text
    assert text.index("PROXY_PORT") < text.index("LOG_LEVEL")
    commands = {name: import_command(name) for name in COMMANDS}
    reading = {name for name, command in commands.items() if command.settings is not None}
    assert reading == COMMANDS.keys() - {"demo", "completion"}
