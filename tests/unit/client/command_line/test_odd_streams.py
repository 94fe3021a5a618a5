"""Odd answers, and standard output and error that are closed, full or of another encoding: a
sentence and an exit code, and never a traceback."""

import json
import subprocess
import sys
from argparse import Namespace
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from io import BytesIO, TextIOWrapper
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from inference_store_client import SettingsError
from inference_store_client.command_line.ending import end_quietly
from inference_store_client.command_line.main import main
from inference_store_client.command_line.printing import RowPrinter
from inference_store_client.command_line.reads import write_part
from tests.both_clients import make_item

from .http_server import Echo, serve

_SOURCE = Path(__file__).parents[4] / "client" / "src"
_MAIN = f"{sys.executable} -m inference_store_client.command_line.main"
_ID = "019ac3f2-7c00-8123-9abc-000000000001"
_ASKS = [
    "models",
    "count m",
    "query m",
    "get m one",
    "sample m",
    "tail m --no-follow",
    "exports list",
    f"exports erased {_ID}",
    f"exports cancel {_ID}",
    f"exports get {_ID} -o frames",
    "erase m --id one",
    "erase m --id one --yes",
    "login",
]
_ANY_OBJECT = {"get m one", "erase m --id one"}
"""They show an object as it came."""
_ODD: list[Any] = ["text", {"items": {}, "next": 5}, {"items": ["x"], "next": None}]


@pytest.fixture(scope="module")
def server() -> Iterator[Echo]:
    with serve() as server:
        yield server


def test_odd_answers(server: Echo, capsys: pytest.CaptureFixture[str]) -> None:
    for words, answer in [*product(_ASKS, _ODD), *product(["count m", "models"], ([], None))]:
        if isinstance(answer, dict) and words in _ANY_OBJECT:
            continue
        status = main([*words.split(), "--url", server.make_url(answer)])
        errors = capsys.readouterr().err
        assert (status > 0, "Error" in errors) == (True, False), (words, answer, errors)
        said = ("the answer ", "of the API", "a command line")
        assert any(part in errors for part in said), (words, answer, errors)
    assert main(["login", "--url", server.make_url({"device": None})]) == 2
    assert "have the api set INFERENCE_STORE_OIDC_DEVICE_CLIENT_ID" in capsys.readouterr().err


def test_where_it_writes_to(server: Echo, tmp_path: Path) -> None:
    url = server.make_url({"count": 3, "warnings": ["look"]})
    full = "standard output: No space left on device\n"
    for words, *expected in [
        ("count m >/dev/full", 1, "", f"warning: look\n{full}"),
        ("count m >&-", 0, "", "warning: look\n"),
        ("count m 2>&-", 0, "3\n", ""),
        ("count m 2>/dev/full", 0, "3\n", ""),
        ("--version >/dev/full", 1, "", full),
    ]:
        ended = subprocess.run(
            ["sh", "-c", f"exec {_MAIN} {words}"],
            env={"PYTHONPATH": str(_SOURCE), "HOME": str(tmp_path), "INFERENCE_STORE_URL": url},
            capture_output=True,
            text=True,
            check=False,
        )
        assert [ended.returncode, ended.stdout, ended.stderr] == expected, words


def test_what_an_encoding_does_not_have(monkeypatch: pytest.MonkeyPatch) -> None:
    item = make_item(1, inference_id="ü \u6f22 \U0001f600 \ud800")
    for encoding, format in product(["utf-8", "latin-1", "ascii"], ["jsonl", "table"]):
        output = BytesIO()
        monkeypatch.setattr(sys, "stdout", TextIOWrapper(output, encoding=encoding))
        printer = RowPrinter(Namespace(columns=["inference_id"], format=format))
        assert end_quietly(partial(print_row, printer, item)) == 0
        written = output.getvalue().decode(encoding)
        if format == "jsonl":
            assert json.loads(written) == {"inference_id": item["inference_id"]}, encoding
        elif encoding != "utf-8":
            assert "\\u6f22 \\U0001f600 \\ud800" in written, encoding


def print_row(printer: RowPrinter, item: dict[str, Any]) -> int:
    printer.print_rows([item])
    return 0


class Terminal(TextIOWrapper):
    def isatty(self) -> bool:
        return True


def test_a_part_that_would_steer_a_terminal() -> None:
    for content, is_plain in [
        (b'{"a":\t"1"}\r\n', True),
        ("ü".encode(), True),
        (b"\xff\xd8\xff\xe0", False),
        (b'{"a": "\x1b[2J"}', False),
    ]:
        written, shown = BytesIO(), BytesIO()
        file, terminal = TextIOWrapper(written), Terminal(shown)
        write_part(content, "data", file)
        assert written.getvalue() == content
        with nullcontext() if is_plain else pytest.raises(SettingsError, match="to a file, > FILE"):
            write_part(content, "data", terminal)
        assert shown.getvalue() == (content if is_plain else b""), content
