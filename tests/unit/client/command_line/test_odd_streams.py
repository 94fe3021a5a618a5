"""Standard output and error that are closed, full or of another encoding: an exit code, and never
a traceback."""

import json
import subprocess
import sys
from argparse import Namespace
from collections.abc import Iterator
from contextlib import nullcontext
from http.server import BaseHTTPRequestHandler
from io import BytesIO, TextIOWrapper
from pathlib import Path

import pytest

from inference_store_client import SettingsError
from inference_store_client.command_line.ending import end_quietly
from inference_store_client.command_line.get import write_part
from inference_store_client.command_line.printing import RowPrinter
from tests.both_clients import make_item

from .http_server import serve

_SOURCE = Path(__file__).parents[4] / "client" / "src"
_MAIN = f"{sys.executable} -m inference_store_client.command_line.main"


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1", "ascii"])
@pytest.mark.parametrize("format", ["jsonl", "table"])
def test_what_an_encoding_does_not_have(
    monkeypatch: pytest.MonkeyPatch, encoding: str, format: str
) -> None:
    item = make_item(1, inference_id="ü \u6f22 \U0001f600 \ud800")
    output = BytesIO()
    monkeypatch.setattr(sys, "stdout", TextIOWrapper(output, encoding=encoding))
    options = Namespace(columns=["inference_id"], format=format)

    def run() -> int:
        RowPrinter(options).print_rows([item])
        return 0

    assert end_quietly(run) == 0
    written = output.getvalue().decode(encoding)
    if format == "jsonl":
        assert json.loads(written) == {"inference_id": item["inference_id"]}
    elif encoding != "utf-8":
        assert "\\u6f22 \\U0001f600 \\ud800" in written


class Terminal(TextIOWrapper):
    """A terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("content", "is_plain"),
    [
        (b'{"a":\t"1"}\r\n', True),
        ("ü".encode(), True),
        (b"\xff\xd8\xff\xe0", False),
        (b'{"a": "\x1b[2J"}', False),
    ],
)
def test_a_part_that_would_steer_a_terminal(content: bytes, is_plain: bool) -> None:
    file, terminal = TextIOWrapper(BytesIO()), Terminal(BytesIO())
    write_part(content, "data", file)
    assert file.buffer.getvalue() == content
    with nullcontext() if is_plain else pytest.raises(SettingsError, match="to a file, > FILE"):
        write_part(content, "data", terminal)
    assert terminal.buffer.getvalue() == (content if is_plain else b"")  # type: ignore[attr-defined]


class _Counting(BaseHTTPRequestHandler):
    """Counts three inferences, with a warning."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        body = json.dumps({"count": 3, "warnings": ["look"]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serve(_Counting) as url:
        yield url


@pytest.mark.parametrize(
    ("words", "status", "output", "errors"),
    [
        ("count m >/dev/full", 1, "", "warning: look\nstandard output: No space left on device\n"),
        ("count m >&-", 0, "", "warning: look\n"),
        ("count m 2>&-", 0, "3\n", ""),
        ("count m 2>/dev/full", 0, "3\n", ""),
        ("--version >/dev/full", 1, "", "standard output: No space left on device\n"),
    ],
)
def test_where_it_writes_to(
    tmp_path: Path, url: str, words: str, status: int, output: str, errors: str
) -> None:
    ended = subprocess.run(
        ["sh", "-c", f"exec {_MAIN} {words}"],
        env={"PYTHONPATH": str(_SOURCE), "HOME": str(tmp_path), "INFERENCE_STORE_URL": url},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (status, output, errors)
