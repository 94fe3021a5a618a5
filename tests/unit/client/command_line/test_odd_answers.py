"""What is no answer of the API is a sentence, never a traceback."""

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import quote, unquote

import pytest

from inference_store_client.command_line.main import main

from .http_server import serve

_ID = "019ac3f2-7c00-8123-9abc-000000000001"
_ASKS = [
    ["models"],
    ["count", "m"],
    ["query", "m"],
    ["get", "m", "one"],
    ["sample", "m"],
    ["tail", "m", "--no-follow"],
    ["exports", "list"],
    ["exports", "erased", _ID],
    ["exports", "cancel", _ID],
    ["exports", "get", _ID, "-o", "frames"],
    ["erase", "m", "--id", "one"],
    ["erase", "m", "--id", "one", "--yes"],
    ["login"],
]


class _Answering(BaseHTTPRequestHandler):
    """Answers everything with the JSON that the path begins with."""

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = unquote(self.path.split("/")[1]).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET

    def log_message(self, *_: object) -> None: ...


@pytest.fixture(scope="module")
def origin() -> Iterator[str]:
    with serve(_Answering) as origin:
        yield origin


_ODD: list[Any] = [[], None, "text", {"items": {}, "next": 5}, {"items": ["x"], "next": None}]
_ANY_OBJECT = {"get m one", "erase m --id one"}
"""They show an object as it came."""
_CASES = [
    (words, answer)
    for words in _ASKS
    for answer in _ODD
    if not (isinstance(answer, dict) and " ".join(words) in _ANY_OBJECT)
]


@pytest.mark.parametrize(("words", "answer"), _CASES, ids=json.dumps)
def test_an_odd_answer(
    origin: str, capsys: pytest.CaptureFixture[str], words: list[str], answer: Any
) -> None:
    status = main([*words, "--url", f"{origin}/{quote(json.dumps(answer), safe='')}"])
    errors = capsys.readouterr().err
    assert (status > 0, "Error" in errors) == (True, False)
    assert "the answer " in errors or "of the API" in errors or "a command line" in errors
