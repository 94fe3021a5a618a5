"""Arguments are read, or refused with what to write instead."""

import json
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import IO

import httpx
import pytest

from inference_store_client import Store, tables
from inference_store_client.command_line import printing
from inference_store_client.command_line.arguments import parse_time
from inference_store_client.command_line.ending import describe, end_quietly
from inference_store_client.command_line.exports import download
from inference_store_client.command_line.main import COMMANDS, import_command, join_values, main
from inference_store_client.errors import make_refusal
from inference_store_client.private_files import NewFile
from inference_store_client.values.answers import Fault, Problem
from tests.both_clients import QUICK, Recorded
from tests.largest_file import largest_file
from tests.unit.client.datasets.fake_pictures import make_metadata
from tests.unit.client.fake_exports import EXPORT, make_export, make_page, make_part

from .http_server import serve


def test_times_and_values_are_read() -> None:
    for text, instant in [
        ("2026-11-01", datetime(2026, 11, 1, tzinfo=UTC)),
        ("2026-11-01T12:00:00+02:00", datetime(2026, 11, 1, 10, tzinfo=UTC)),
        ("2026-11-01T12:00:00.5Z", datetime(2026, 11, 1, 12, 0, 0, 500_000, tzinfo=UTC)),
    ]:
        assert parse_time(text) == instant
    for text, ago in [
        ("90s", timedelta(seconds=90)),
        ("30m", timedelta(minutes=30)),
        ("12h", timedelta(hours=12)),
        ("7d", timedelta(days=7)),
        ("2w", timedelta(weeks=2)),
        ("-1h", timedelta(hours=1)),
    ]:
        before = datetime.now(UTC)
        assert before <= parse_time(text) + ago <= datetime.now(UTC), text
    # a value may begin with a hyphen
    cases: list[tuple[list[str], list[str]]] = [
        (["m", "--sort", "-top_score", "--limit", "5"], ["m", "--sort=-top_score", "--limit", "5"]),
        (["m", "--since", "-1h", "--until", "-5m"], ["m", "--since=-1h", "--until=-5m"]),
        (["m", "--sort", "--limit", "5"], ["m", "--sort", "--limit", "5"]),
        (["m", "--by", "ok", "--order", "-count"], ["m", "--by", "ok", "--order=-count"]),
        (["m", "-o", "frames.csv"], ["m", "-o", "frames.csv"]),
    ]
    for words, joined in cases:
        assert join_values(words) == joined, words


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
    capsys: pytest.CaptureFixture[str],
    subtests: pytest.Subtests,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    cases: list[tuple[list[str], str]] = [
        (["query"], "required: model"),
        (["query", "m", "--since", "yesterday"], "'yesterday' is not a time: write 2026-11-01"),
        (["query", "m", "--since", "999999w"], "is not a time"),
        (["query", "m", "--limit", "0"], "'0' is not a number of at least 1"),
        (["query", "m", "--columns", ","], "it names no column"),
        (["query", "m", "--format", "xml"], "invalid choice: 'xml'"),
        (["aggregate", "m", "{function"], "'{function' is no JSON"),
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
    exports: list[tuple[list[str], str]] = [
        (["-o", "a.csv", "--expires-in", "P1D"], "--expires-in: of a job alone; add --job"),
        (["-o", "a.csv", "--confirm"], "--confirm: of a job alone; add --job"),
        (["-o", "a", "--format", "coco", "--confirm"], "--confirm: of a job alone; add --job"),
        (["-o", "-", "--format", "csv"], "- is no ordinary file: name one"),
        (["-o", "-", "--job"], "- is no ordinary file: name one"),
        (["-o", "a", "--job", "--force"], "--force replaces a file alone: remove a first"),
        (["-o", "a", "--format", "coco", "--force"], "--force replaces a file alone"),
        (["-o", "a", "--job", "--unknown-keys", "empty"], "--unknown-keys: a job refuses them"),
        (
            ["-o", "a", "--format", "chariot"],
            "--format chariot: only the store writes it; add --jo",
        ),
        (["-o", "a", "--format", "webdataset", "--blobs", "copy"], "--blobs: of a job alone"),
        (["-o", "a", "--format", "coco", "--job"], "a job writes parquet, arrow"),
        (["-o", "frames"], "--format arrow|chariot|coco|csv|fiftyone|"),
        (["-o", "/no/such/folder/frames.csv"], "is no folder"),
        (["-o", "/tmp", "--format", "csv"], "is no ordinary file"),
        (["-o", "a.csv", "--url", "store.example"], "'store.example' is no address"),
        (["-o", "a.csv", "--key", "ü"], "no header can hold"),
    ]
    monkeypatch.chdir(tmp_path)
    for words, remedy in exports:
        assert main(["export", "m", "--url", "https://store.example", *words]) == 2, words
        assert remedy in capsys.readouterr().err, words
    monkeypatch.delenv("INFERENCE_STORE_URL", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert main(["query", "m", "--sort", "-top_score"]) == 2
    assert "no address: --url" in capsys.readouterr().err


def test_every_command_explains_itself_and_a_shell_completes_it(
    capsys: pytest.CaptureFixture[str], subtests: pytest.Subtests
) -> None:
    for name in COMMANDS:
        with subtests.test(name):
            with pytest.raises(SystemExit) as end:
                main([name, "--help"])
            assert end.value.code == 0
            assert COMMANDS[name] in " ".join(capsys.readouterr().out.split())
            assert callable(import_command(name).run)
    for shell in ["bash", "zsh", "fish"]:
        assert main(["completion", shell]) == 0, shell
        script = capsys.readouterr().out
        assert [name for name in [*COMMANDS, "no-follow"] if name not in script] == [], shell


# Text from outside cannot steer a terminal, and a table fits into it.


def test_what_would_steer_a_terminal_is_escaped_and_a_text_cut() -> None:
    for text, shown in [
        ("plain", "plain"),
        ("über 東京", "über 東京"),
        ("\x1b[31mred", "\\x1b[31mred"),
        ("a\u202eb", "a\\u202eb"),
        ("a\nb\tc\r", "a\\nb\\tc\\r"),
        ("\x00", "\\x00"),
    ]:
        assert tables.make_printable(text) == shown, text
    for text, width, shown in [
        ("abcdef", 6, "abcdef"),
        ("abcdefg", 6, "abcde…"),
        ("東京都庁", 6, "東京…"),
        ("東京", 4, "東京"),
    ]:
        assert tables.shorten(text, width) == shown, text
        assert tables.measure(shown) <= width, text
    assert printing.write_line("a\ud800ü") == '"a\\ud800\\u00fc"'
    assert printing.write_line("ü") == '"ü"'


_ITEM = {
    "inference_id": "frame-1",
    "received_at": "2026-11-01T00:00:00.123456Z",
    "ok": True,
    "top_score": 0.1,
    "metadata": make_metadata(
        ("n", "int", "123456789012345678901234567890"),
        ("price", "float", "0.10"),
        ("a.b", "string", "dots"),
        ("camera", "json", '{"angle": 12.750, "tags": ["x", "y"]}'),
        ("at", "timestamp", "2026-11-01T06:00:00+02:00"),
        ("bad", "int", "n/a"),
    ),
    "predictions": [{"label": "person", "score": 0.9}, {"label": "car", "score": None}],
    "cursor": "c",
}


def test_a_line_and_a_cell_have_exact_numbers_and_the_metadata_that_is_named() -> None:
    line = printing.write_line(
        printing.shape(_ITEM, ["inference_id", "metadata", "metadata.n", "top_score"])
    )
    assert line == (
        '{"inference_id": "frame-1", "metadata": {"n": 123456789012345678901234567890,'
        ' "price": 0.10, "a.b": "dots", "camera": {"angle": 12.750, "tags": ["x", "y"]},'
        ' "at": "2026-11-01T06:00:00+02:00", "bad": "n/a"}, "top_score": 0.1}'
    )
    assert "cursor" not in printing.shape(_ITEM, None)
    cases: list[tuple[list[str], str]] = [
        (["n"], '{"n": 123456789012345678901234567890}'),
        (["camera.angle", "bad"], '{"camera": {"angle": 12.750}, "bad": "n/a"}'),
        (["camera.tags[]"], '{"camera": {"tags": ["x", "y"]}}'),
        (["camera.angle", "camera"], '{"camera": {"angle": 12.750, "tags": ["x", "y"]}}'),
        (["a.b", "camera.angle.x", "missing", "missing.too"], '{"a.b": "dots"}'),
    ]
    for names, metadata in cases:
        line = printing.write_line(printing.shape(_ITEM, [f"metadata.{name}" for name in names]))
        assert line == f'{{"metadata": {metadata}}}', names
    for column, cell in [
        ("inference_id", "frame-1"),
        ("received_at", "2026-11-01T00:00:00Z"),
        ("ok", "true"),
        ("top_label", ""),
        ("metadata.n", "123456789012345678901234567890"),
        ("metadata.price", "0.10"),
        ("metadata.a.b", "dots"),
        ("metadata.camera.angle", "12.750"),
        ("metadata.camera.tags[]", "x, y"),
        ("metadata.missing", ""),
        ("metadata.camera.missing", ""),
        ("predictions.label", "person, car"),
        ("predictions.score", "0.9, "),
    ]:
        assert tables.pick(printing.shape(_ITEM, [column]), column) == cell, column


def test_a_table_fits_into_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    items = [{"inference_id": "f" * 50, "error": "the model\ntimed out " * 9, "ok": False}] * 2
    for terminal in (40, 200):
        monkeypatch.setenv("COLUMNS", str(terminal))
        table = tables.Table.fit(["inference_id", "error", "ok"], items)
        lines = [table.format_head(), *map(table.format_row, items)]
        assert max(map(len, lines)) <= terminal
        assert lines[0].split() == ["inference_id", "error", "ok"]
        assert lines[1].endswith("false")
        assert ("…" in lines[1].split()[0]) is (terminal == 40)


# What the command line says of an export that the store writes, if something goes wrong.


def get(folder: Path, *answers: httpx.Response | BaseException, state: str = "pending") -> int:
    """Read an export and download it, before these answers; return the exit code."""
    recorded = Recorded([make_export(state), *answers])
    http = httpx.Client(transport=httpx.MockTransport(recorded))
    store = Store("https://store.example", retries=QUICK, http_client=http)

    def run() -> int:
        download(store.export(EXPORT), folder)
        return 0

    return end_quietly(run)


def test_an_interruption_says_what_becomes_of_the_export(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fetches = f"`istore exports get {EXPORT} -o FOLDER` fetches it"
    for state, said in {
        "pending": f"The store goes on with export {EXPORT}: {fetches},"
        f" `istore exports cancel {EXPORT}` stops it.\n",
        "done": f"Export {EXPORT} stays in the store until it expires: {fetches}.\n",
    }.items():
        assert get(tmp_path / "frames", KeyboardInterrupt(), state=state) == 130
        assert capsys.readouterr().err == said, state
        assert [*tmp_path.iterdir()] == [], state
    with pytest.raises(SystemExit):  # a signal
        get(tmp_path / "frames", SystemExit(143))
    assert f"`istore exports cancel {EXPORT}` stops it" in capsys.readouterr().err


def test_what_became_of_an_export_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "frames"
    assert get(folder, make_export("done"), make_page([]), make_export("done")) == 0
    assert capsys.readouterr().err == (
        f"0 inferences in 0 files: {folder}\nnothing matches: the folder is empty\n"
    )
    assert [*folder.iterdir()] == []
    part = make_part(1, b"one") | {"gone": 1, "missing": 2}
    page, content = make_page([part]), httpx.Response(200, content=b"one")
    assert get(tmp_path / "parts", make_export("done"), page, content) == 0
    assert capsys.readouterr().err == (
        f"1 inference in 1 file: {tmp_path / 'parts'}\n"
        "left out: 1 inference (erased), 2 blobs (deleted, not in the bucket, or too large)\n"
    )


def test_a_job_obeys_the_ending_of_its_folder(tmp_path: Path) -> None:
    with serve() as server:
        for words, format in [
            ("faces.csv", "csv"),
            ("faces.NDJSON", "jsonl"),
            ("faces", "parquet"),
            ("faces.csv --format arrow", "arrow"),
        ]:
            name, *more = words.split()
            asked = ["export", "m", "--job", "--url", server.make_url({})]
            assert main([*asked, "-o", str(tmp_path / name), *more]) == 1
            assert json.loads(server.bodies[-1])["format"] == format, words


def test_a_request_without_an_answer_may_have_been_carried_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["export", "m", "--url", "http://127.0.0.1:1", "--job", "-o", str(tmp_path / "frames")]
    assert main(words) == 1
    assert "`istore exports list` shows the export" in capsys.readouterr().err


# An export's file appears when it is whole, and not at all otherwise.


def test_a_file_appears_whole_or_the_one_before_stays(tmp_path: Path) -> None:
    path = tmp_path / "frames.csv"
    with closing(NewFile(path)) as file:
        file.write(b"void")
        file.begin_again()
        file.write(b"a")
        file.write(b"b")
        assert not path.exists()
        file.publish()
    assert path.read_bytes() == b"ab"
    assert path.stat().st_mode & 0o777 == 0o600
    assert [*tmp_path.iterdir()] == [path]
    path = tmp_path / "frames.csv"
    path.write_bytes(b"before")
    with pytest.raises(KeyboardInterrupt), closing(NewFile(path)):
        raise KeyboardInterrupt
    assert path.read_bytes() == b"before"


def test_what_is_converted_leaves_no_other_file(tmp_path: Path) -> None:
    def write(source: IO[bytes], target: str) -> None:
        Path(target).write_bytes(source.read()[::-1])

    def fail(source: IO[bytes], target: str) -> None:
        write(source, target)
        raise ValueError

    def make(convert: Callable[[IO[bytes], str], None]) -> None:
        with closing(NewFile(path)) as file:
            file.write(b"abc")
            file.convert(convert)
            file.publish()

    path = tmp_path / "frames.parquet"
    with pytest.raises(ValueError):
        make(fail)
    assert [*tmp_path.iterdir()] == []
    make(write)
    assert path.read_bytes() == b"cba"
    assert [*tmp_path.iterdir()] == [path]


def test_a_disk_that_is_full_is_a_sentence_about_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "frames.csv"

    def run(size: int) -> int:
        with closing(NewFile(path)) as file:
            file.write(bytes(size))
            file.publish()
        return 0

    for size in (100, 100_000):
        with largest_file(10):
            status = end_quietly(partial(run, size))
        assert (status, capsys.readouterr().err) == (1, f"{path}: File too large\n"), size
        assert [*tmp_path.iterdir()] == []
