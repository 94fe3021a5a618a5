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
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.polling import until
from tests.unit.client.fake_exports import EXPORT, make_export

_CLIENT = Path(__file__).parents[4] / "client"
_SCRIPTS = tomllib.loads((_CLIENT / "pyproject.toml").read_text())["project"]["scripts"]
_MODULE, _, _FUNCTION = _SCRIPTS["istore"].partition(":")
# `nohup make test &` has SIGHUP ignored, and so would have what it starts.
_RUN = (
    "import signal, sys; signal.signal(signal.SIGHUP, signal.SIG_DFL);"
    f" from {_MODULE} import {_FUNCTION}; sys.exit({_FUNCTION}())"
)
_HANG = 'print("here", flush=True); import time; time.sleep(300)\n'


_SECONDS = 300


@contextmanager
def start(folder: Path, *words: str, before: Sequence[str] = ()) -> Iterator[subprocess.Popen[str]]:
    """Start `istore` as its script does; modules in `folder` come before all others."""
    with subprocess.Popen(
        [*before, sys.executable, "-c", _RUN, *words],
        env={"PYTHONPATH": f"{folder}{os.pathsep}{_CLIENT / 'src'}", "HOME": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture
def server() -> Iterator[socket.socket]:
    """A server that answers only what a test sends."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(_SECONDS)
        yield server


def get_url(server: socket.socket) -> str:
    return f"http://127.0.0.1:{server.getsockname()[1]}"


def test_while_it_imports(tmp_path: Path) -> None:
    (tmp_path / "httpx.py").write_text(_HANG)
    with start(tmp_path, "count", "m") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "here\n"
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=_SECONDS)[1] == ""
    assert process.returncode == 130


def test_in_the_background_of_a_script_it_goes_on(tmp_path: Path, server: socket.socket) -> None:
    ignoring = ["sh", "-c", 'trap "" INT; exec "$@"', "sh"]  # as `istore … &` does
    with (
        start(tmp_path, "count", "m", "--url", get_url(server), before=ignoring) as process,
        server.accept()[0] as connection,
    ):
        read_request(connection)
        process.send_signal(signal.SIGINT)
        answer(connection, {"count": 3, "warnings": []})
        output, errors = process.communicate(timeout=_SECONDS)
    assert (process.returncode, output, errors) == (0, "3\n", "")


async def test_amid_a_file(tmp_path: Path, server: socket.socket) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    words = ("-o", str(folder / "frames.csv"), "--url", get_url(server))
    head = "HTTP/1.1 200 OK\r\nContent-Type: text/csv\r\nContent-Length: 1000\r\n\r\n"
    for number in (signal.SIGTERM, signal.SIGHUP):
        with start(tmp_path, "export", "m", *words) as process, server.accept()[0] as connection:
            read_request(connection)
            connection.sendall(f'{head}"inference_id","cursor"\r\n"frame-1","1"\r\n'.encode())
            await until(lambda: list_files(folder), bool)
            process.send_signal(number)
            output, errors = process.communicate(timeout=_SECONDS)
        assert (process.returncode, output, errors) == (128 + number, "", "")
        assert os.listdir(folder) == []


def test_while_the_store_writes(tmp_path: Path, server: socket.socket) -> None:
    words = ("-o", str(tmp_path / "frames"), "--url", get_url(server))
    with (
        start(tmp_path, "export", "m", "--job", *words) as process,
        server.accept()[0] as connection,
    ):
        read_request(connection)
        answer(connection, make_export("pending").json())
        assert connection.recv(65_536).startswith(b"GET /v1/exports/")
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=_SECONDS)
    assert process.returncode == 128 + signal.SIGTERM
    assert f"`istore exports get {EXPORT} -o FOLDER` fetches it" in errors
    assert f"`istore exports cancel {EXPORT}` stops it" in errors


async def list_files(folder: Path) -> list[str]:
    return os.listdir(folder)


def answer(connection: socket.socket, content: Any) -> None:
    body = json.dumps(content).encode()
    head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    connection.sendall(f"{head}\r\n\r\n".encode() + body)


def read_request(connection: socket.socket) -> bytes:
    connection.settimeout(_SECONDS)
    received = b""
    while b"\r\n\r\n" not in received:
        received += connection.recv(65_536)
    head, _, body = received.partition(b"\r\n\r\n")
    length = re.search(rb"(?i)content-length: (\d+)", head)
    assert length is not None
    while len(body) < int(length[1]):
        body += connection.recv(65_536)
    return body
