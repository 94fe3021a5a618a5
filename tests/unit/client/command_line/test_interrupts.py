"""Ctrl-C and other signals end `istore` without a traceback, whatever it is doing."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.both_clients import make_item
from tests.polling import until

_CLIENT = Path(__file__).parents[4] / "client"
_SCRIPTS = tomllib.loads((_CLIENT / "pyproject.toml").read_text())["project"]["scripts"]
_MODULE, _, _FUNCTION = _SCRIPTS["istore"].partition(":")
_RUN = f"import sys; from {_MODULE} import {_FUNCTION}; sys.exit({_FUNCTION}())"
_HANG = 'print("here", flush=True); import time; time.sleep(60)\n'
_PAGE = {"items": [make_item(1)], "next": "cursor", "searched_back_to": None, "warnings": []}


def start(folder: Path, *words: str, before: Sequence[str] = ()) -> subprocess.Popen[str]:
    """Start `istore` as its script does; modules in `folder` come before all others."""
    return subprocess.Popen(
        [*before, sys.executable, "-c", _RUN, *words],
        env={"PYTHONPATH": f"{folder}{os.pathsep}{_CLIENT / 'src'}", "HOME": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def interrupt(process: subprocess.Popen[str]) -> str:
    """Send Ctrl-C; return what was still printed, and check that nothing was said."""
    process.send_signal(signal.SIGINT)
    output, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (130, "")
    return output


@pytest.fixture
def server() -> Iterator[socket.socket]:
    """A server that answers only what a test sends."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(60)
        yield server


def get_url(server: socket.socket) -> str:
    return f"http://127.0.0.1:{server.getsockname()[1]}"


def test_while_it_imports(tmp_path: Path) -> None:
    (tmp_path / "httpx.py").write_text(_HANG)
    process = start(tmp_path, "count", "m")
    assert process.stdout is not None
    assert process.stdout.readline() == "here\n"
    interrupt(process)


def test_while_it_waits_for_a_server_that_does_not_answer(
    tmp_path: Path, server: socket.socket
) -> None:
    process = start(tmp_path, "count", "m", "--url", get_url(server))
    connection, _ = server.accept()
    with connection:
        assert connection.recv(1) == b"P"
        assert interrupt(process) == ""


def test_in_the_background_of_a_script_it_goes_on(tmp_path: Path, server: socket.socket) -> None:
    ignoring = ["sh", "-c", 'trap "" INT; exec "$@"', "sh"]  # as `istore … &` does
    process = start(tmp_path, "count", "m", "--url", get_url(server), before=ignoring)
    connection, _ = server.accept()
    with connection:
        read_request(connection)
        process.send_signal(signal.SIGINT)
        answer(connection, {"count": 3, "warnings": []})
        output, said = process.communicate(timeout=60)
    assert (process.returncode, output, said) == (0, "3\n", "")


def test_after_it_printed(tmp_path: Path, server: socket.socket) -> None:
    words = ["--limit", "2", "--columns", "inference_id", "--format", "jsonl"]
    process = start(tmp_path, "query", "m", *words, "--url", get_url(server))
    connection, _ = server.accept()
    with connection:
        read_request(connection)
        answer(connection, _PAGE)
        assert b'"cursor"' in read_request(connection)
        assert interrupt(process) == '{"inference_id": "frame-1"}\n'


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
async def test_amid_a_file(tmp_path: Path, server: socket.socket, number: signal.Signals) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    words = ("-o", str(folder / "frames.csv"), "--url", get_url(server))
    process = start(tmp_path, "export", "m", *words)
    connection, _ = server.accept()
    with connection:
        read_request(connection)
        head = "HTTP/1.1 200 OK\r\nContent-Type: text/csv\r\nContent-Length: 1000"
        connection.sendall(f'{head}\r\n\r\n"inference_id","cursor"\r\n"frame-1","1"\r\n'.encode())
        await until(lambda: list_files(folder), bool)
        process.send_signal(number)
        output, said = process.communicate(timeout=60)
    assert (process.returncode, output, said) == (128 + number, "", "")
    assert os.listdir(folder) == []


async def list_files(folder: Path) -> list[str]:
    return os.listdir(folder)


def test_while_python_ends(tmp_path: Path) -> None:
    late = "import atexit\n\n@atexit.register\ndef wait():\n    " + _HANG
    (tmp_path / "sitecustomize.py").write_text(late)
    process = start(tmp_path, "logout", "--url", "http://127.0.0.1:1")
    assert process.stdout is not None
    assert process.stdout.readline() == "here\n"
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (130, "Nobody is signed in to http://127.0.0.1:1.\n")


def answer(connection: socket.socket, content: Any) -> None:
    """Answer with JSON."""
    body = json.dumps(content).encode()
    head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    connection.sendall(f"{head}\r\n\r\n".encode() + body)


def read_request(connection: socket.socket) -> bytes:
    """Read a request with its body."""
    connection.settimeout(60)
    received = b""
    while b"\r\n\r\n" not in received:
        received += connection.recv(65_536)
    head, _, body = received.partition(b"\r\n\r\n")
    found = re.search(rb"(?i)content-length: (\d+)", head)
    assert found is not None
    while len(body) < int(found[1]):
        body += connection.recv(65_536)
    return body
