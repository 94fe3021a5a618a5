"""Arguments are read, or refused with what to write instead."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from inference_store_client.command_line.arguments import parse_instant
from inference_store_client.command_line.ending import describe
from inference_store_client.command_line.main import COMMANDS, import_command, join_values, main
from inference_store_client.errors import make_refusal
from inference_store_client.values.problems import Fault, Problem


def test_an_instant() -> None:
    for text, instant in [
        ("2026-11-01", datetime(2026, 11, 1, tzinfo=UTC)),
        ("2026-11-01T12:00:00+02:00", datetime(2026, 11, 1, 10, tzinfo=UTC)),
        ("2026-11-01T12:00:00.5Z", datetime(2026, 11, 1, 12, 0, 0, 500_000, tzinfo=UTC)),
    ]:
        assert parse_instant(text) == instant


def test_how_long_ago() -> None:
    for text, ago in [
        ("90s", timedelta(seconds=90)),
        ("30m", timedelta(minutes=30)),
        ("12h", timedelta(hours=12)),
        ("7d", timedelta(days=7)),
        ("2w", timedelta(weeks=2)),
        ("-1h", timedelta(hours=1)),
    ]:
        before = datetime.now(UTC)
        assert before <= parse_instant(text) + ago <= datetime.now(UTC), text


def test_a_value_may_begin_with_a_hyphen() -> None:
    cases: list[tuple[list[str], list[str]]] = [
        (["m", "--sort", "-top_score", "--limit", "5"], ["m", "--sort=-top_score", "--limit", "5"]),
        (["m", "--since", "-1h", "--until", "-5m"], ["m", "--since=-1h", "--until=-5m"]),
        (["m", "--sort", "--limit", "5"], ["m", "--sort", "--limit", "5"]),
        (["m", "-o", "frames.csv"], ["m", "-o", "frames.csv"]),
    ]
    for words, joined in cases:
        assert join_values(words) == joined, words


def test_without_an_address_the_option_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("INFERENCE_STORE_URL", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert main(["query", "m", "--sort", "-top_score"]) == 2
    assert "no address: --url" in capsys.readouterr().err


def test_an_error_of_the_api_names_the_option() -> None:
    for path, detail, described in [
        ("received_at.to", "it must be later", "422 Wrong\nit must be later"),
        ("received_at.from", "Wrong.", "422 Wrong\nWrong.\n--since: it must be later"),
        (
            "received_at.to",
            "received_at.to: it must be later",
            "422 Wrong\n--until: it must be later",
        ),
        ("fields.0", "Set `confirm`.", "422 Wrong\nSet `--confirm`.\n--columns: it must be later"),
        ("filter", "Wrong.", "422 Wrong\nWrong.\nfilter: it must be later"),
    ]:
        fault = Fault(path=path, message="it must be later", known=())
        problem = Problem(type="", title="Wrong", status=422, detail=detail, errors=(fault,))
        assert describe(make_refusal(problem)) == described, path


def test_what_is_called_wrongly_is_refused(
    capsys: pytest.CaptureFixture[str], subtests: pytest.Subtests
) -> None:
    cases: list[tuple[list[str], str]] = [
        (["query"], "required: model"),
        (["query", "m", "--since", "yesterday"], "'yesterday' is no time: write 2026-11-01"),
        (["query", "m", "--since", "999999w"], "is no time"),
        (["query", "m", "--limit", "0"], "'0' is no number of at least 1"),
        (["query", "m", "--columns", ","], "it names no column"),
        (["query", "m", "--format", "xml"], "invalid choice: 'xml'"),
        (["erase", "m"], "one of the arguments --id --subject --filter is required"),
        (["erase", "m", "--id", "a", "--filter", "ok"], "not allowed with"),
        (["export", "m"], "required: -o/--output"),
        (["no-such-command"], "invalid choice"),
        ([], "required: command"),
    ]
    for words, remedy in cases:
        with subtests.test(str(words)):
            with pytest.raises(SystemExit) as end:
                main(words)
            assert end.value.code == 2
            assert remedy in capsys.readouterr().err


def test_an_export_refuses_what_it_cannot_do(capsys: pytest.CaptureFixture[str]) -> None:
    cases: list[tuple[list[str], str]] = [
        (["-o", "a.csv", "--expires-in", "P1D"], "--expires-in: of a job alone; add --job"),
        (["-o", "a.csv", "--confirm"], "--confirm: of a job alone; add --job"),
        (["-o", "a", "--format", "coco", "--confirm"], "--confirm: of a job alone; add --job"),
        (["-o", "-", "--format", "csv"], "- is no ordinary file: name one"),
        (["-o", "-", "--job"], "- is no ordinary file: name one"),
        (["-o", "a", "--job", "--force"], "--force replaces a file alone: remove a first"),
        (["-o", "a", "--format", "coco", "--force"], "--force replaces a file alone"),
        (["-o", "a", "--job", "--unknown-keys", "empty"], "--unknown-keys: a job refuses them"),
    ]
    for words, remedy in cases:
        assert main(["export", "m", "--url", "https://store.example", *words]) == 2, words
        assert remedy in capsys.readouterr().err, words


def test_every_command_explains_itself(
    capsys: pytest.CaptureFixture[str], subtests: pytest.Subtests
) -> None:
    for name in COMMANDS:
        with subtests.test(name):
            with pytest.raises(SystemExit) as end:
                main([name, "--help"])
            assert end.value.code == 0
            assert COMMANDS[name] in " ".join(capsys.readouterr().out.split())
            assert import_command(name).__doc__


def test_a_shell_completes_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    for shell in ["bash", "zsh", "fish"]:
        assert main(["completion", shell]) == 0, shell
        script = capsys.readouterr().out
        assert [name for name in [*COMMANDS, "no-follow"] if name not in script] == [], shell
