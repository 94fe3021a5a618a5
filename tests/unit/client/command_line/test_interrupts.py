"""Ctrl-C and other signals end `istore` without a traceback, whatever it is doing."""

import argparse
import json
import os
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any

import httpx
import pytest

from inference_store_client import ConnectionFailed, Forbidden, Retries
from inference_store_client.command_line.printing import RowPrinter
from inference_store_client.command_line.tail import Tail
from inference_store_client.origin import Origin
from inference_store_client.settings import ClientSettings
from inference_store_client.sync import BlockingTransport
from tests.both_clients import CutStream, make_item, make_page, make_problem
from tests.http_stub import Response, serve_http

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


@contextmanager
def serve_waiting(*answers: Response) -> Iterator[tuple[str, Event, Event]]:
    """Yield the URL of a server that gives these answers, what says that the last of them was asked
    for, and what lets it go."""
    left, asked, is_let_go = [*answers], Event(), Event()

    def answer(_: object) -> Response:
        response = left.pop(0)
        if not left:
            asked.set()
            is_let_go.wait(_SECONDS)
        return response

    with serve_http(answer) as url:
        try:
            yield url, asked, is_let_go
        finally:
            is_let_go.set()


def test_while_it_imports(tmp_path: Path) -> None:
    (tmp_path / "httpx.py").write_text(_HANG)
    with start(tmp_path, "count", "m") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "here\n"
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=_SECONDS)[1] == ""
    assert process.returncode == 130


def test_in_the_background_of_a_script_it_goes_on(tmp_path: Path) -> None:
    ignoring = ["sh", "-c", 'trap "" INT; exec "$@"', "sh"]  # as `istore … &` does
    with (
        serve_waiting(Response(body=b'{"count": 3, "warnings": []}')) as (url, asked, is_let_go),
        start(tmp_path, "count", "m", "--url", url, before=ignoring) as process,
    ):
        assert asked.wait(_SECONDS)
        process.send_signal(signal.SIGINT)
        is_let_go.set()
        output, errors = process.communicate(timeout=_SECONDS)
    assert (process.returncode, output, errors) == (0, "3\n", "")


def test_amid_a_file(tmp_path: Path) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    content = Response(200, b'"inference_id","cursor"\r\n"frame-1","1"\r\n', "text/csv")
    for number in (signal.SIGTERM, signal.SIGHUP):
        with (
            # at the end of the file it asks whether there is more
            serve_waiting(content, content) as (url, asked, _),
            start(tmp_path, "export", "m", "-o", f"{folder}/frames.csv", "--url", url) as process,
        ):
            assert asked.wait(_SECONDS)
            assert len(os.listdir(folder)) == 1
            process.send_signal(number)
            output, errors = process.communicate(timeout=_SECONDS)
        assert (process.returncode, output, errors) == (128 + number, "", "")
        assert os.listdir(folder) == []


# The tail shows each arrival once, also after an interruption.

_BEGIN = 'event: begin\ndata: {"at": "2026-11-01T00:00:00Z"}\n\n'
_AWAY = "away"
_CUT = "cut"
"""At the end of what a connection brings."""
_SETTINGS = ClientSettings(
    Origin("https://store.example"), retries=Retries(first_wait_seconds=0.0, attempts=2)
)


def write_arrived(numbers: Sequence[int], *, more: bool = False) -> str:
    items = [{"uid": make_item(number)["uid"]} for number in numbers]
    return f"event: inferences\ndata: {json.dumps({'items': items, 'more': more})}\n\n"


@dataclass(slots=True)
class FakeApi:
    """Streams `follows`, one after the other, and has `last` as the last arrivals at each query."""

    follows: list[str]
    last: list[list[int] | httpx.Response]
    bodies: list[dict[str, Any]] = field(default_factory=list)

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/follow"):
            return self._follow()
        body = json.loads(request.content)
        self.bodies.append(body)
        if "inference_ids" in body:
            numbers = [int(uid[-12:], 16) for uid in body["inference_ids"]]
            return self._answer(sorted(numbers, reverse=True))
        last = self.last.pop(0)
        return last if isinstance(last, httpx.Response) else self._answer(last)

    def _follow(self) -> httpx.Response:
        if not self.follows:
            return make_problem(403)
        follow = self.follows.pop(0)
        if follow == _AWAY:
            raise httpx.ConnectError("Connection refused")
        if follow.endswith(_CUT):
            return httpx.Response(200, stream=CutStream(follow.removesuffix(_CUT).encode()))
        return httpx.Response(200, content=follow.encode())

    @staticmethod
    def _answer(numbers: Sequence[int]) -> httpx.Response:
        return make_page(*map(make_item, numbers))

    def run(self, end: type[Exception] = Forbidden, **changes: Any) -> None:
        words = {"model": "m", "filter": None, "limit": 10, "columns": ["inference_id"]}
        fixed = {"format": "jsonl", "since": None, "until": None, "unknown_keys": "refuse"}
        options = argparse.Namespace(**{**words, **fixed, **changes})
        http = httpx.Client(transport=httpx.MockTransport(self))
        with http, pytest.raises(end):
            Tail(BlockingTransport(_SETTINGS, http), options, RowPrinter(options)).follow()


def test_each_arrival_is_shown_once(capsys: pytest.CaptureFixture[str]) -> None:
    follows = [
        _BEGIN + write_arrived([2, 3]) + write_arrived([3, 4]),
        _BEGIN + write_arrived([6], more=True),
    ]
    api = FakeApi(follows, [[2, 1], [5, 4, 3]])
    api.run(filter="ok")
    shown = capsys.readouterr()
    assert list_names(shown.out) == [f"frame-{number}" for number in (1, 2, 3, 4, 5, 6)]
    [said] = shown.err.splitlines()
    assert "More arrived with them" in said
    first, by_id = api.bodies[:2]
    assert (first["sort"], first["filter"], first["limit"]) == ("-indexed_at", "ok", 10)
    assert "filter" not in by_id


def list_names(lines: str) -> list[str]:
    return [json.loads(line)["inference_id"] for line in lines.splitlines()]


def test_it_follows_past_a_search_out_of_time_and_an_erased_key(
    capsys: pytest.CaptureFixture[str],
) -> None:
    slow = make_problem(503, "query-timeout")
    FakeApi([_BEGIN + write_arrived([7])], [slow]).run()
    shown = capsys.readouterr()
    assert json.loads(shown.out) == {"inference_id": "frame-7"}
    assert "503" in shown.err
    api = FakeApi([_BEGIN + write_arrived([2]), _BEGIN], [[1], [3]])
    api.run(columns=["metadata.n"])
    asked = [body.get("unknown_keys", "refuse") for body in api.bodies]
    assert asked == ["refuse", "empty", "empty"]


def test_it_waits_for_a_store_that_is_away_if_it_was_there(
    capsys: pytest.CaptureFixture[str],
) -> None:
    end = f"event: end\ndata: {make_problem(403).text}\n\n"
    cut_off = _BEGIN + write_arrived([6])[:9] + _CUT
    follows = [_BEGIN, *[_AWAY] * 20, _BEGIN + write_arrived([7]) + _CUT, cut_off, _BEGIN + end]
    api = FakeApi([*follows, _BEGIN], [[1]] * 4)
    api.run()
    assert api.follows == [_BEGIN]  # the event of the end is the refusal
    shown = capsys.readouterr()
    assert list_names(shown.out) == ["frame-1", "frame-7"]
    [line] = shown.err.splitlines()
    assert "Connection refused" in line
    assert "Ctrl-C ends" in line
    for nothing in (_AWAY, ""):
        FakeApi([nothing] * 3, []).run(ConnectionFailed)
