"""Answers are compressed whole and by the piece, and only if that is worth it."""

import json
import zlib
from collections.abc import Callable
from typing import Any

import cramjam
from starlette.types import Message, Receive, Scope, Send

from inference_store.api.answer import NAME, write_warnings
from inference_store.api.http import CODINGS, COMPRESSORS, Compression, choose_coding, choose_type

LARGE = b'{"label": "person", "score": 0.5}' * 4000
DECOMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": lambda data: zlib.decompressobj(31).decompress(data),
    "zstd": lambda data: bytes(cramjam.zstd.decompress(data)),
}


async def compress_answer(
    pieces: list[bytes],
    *,
    accept: str,
    kind: str = "application/json",
    status: int = 200,
    more: dict[str, str] | None = None,
) -> tuple[dict[str, str], list[bytes]]:
    """The headers and the pieces that a client has of an answer of these pieces."""
    size = sum(map(len, pieces))
    sent_headers = {"content-type": kind, "content-length": str(size)} | (more or {})

    async def app(_scope: Scope, _receive: Receive, send: Send) -> None:
        raw = [(name.encode(), value.encode()) for name, value in sent_headers.items()]
        await send({"type": "http.response.start", "status": status, "headers": raw})
        for number, piece in enumerate(pieces, 1):
            more_body = number < len(pieces)
            await send({"type": "http.response.body", "body": piece, "more_body": more_body})

    messages: list[Message] = []

    async def send(message: Message) -> None:
        messages.append(message)

    async def receive() -> Message:
        raise AssertionError("nothing of the request is read")

    scope = {"type": "http", "headers": [(b"accept-encoding", accept.encode())]}
    await Compression(app)(scope, receive, send)
    start, *bodies = messages
    headers = {name.decode().lower(): value.decode() for name, value in start["headers"]}
    return headers, [body["body"] for body in bodies]


async def test_an_answer_is_compressed() -> None:
    assert set(COMPRESSORS) == set(CODINGS)
    for coding in CODINGS:
        headers, [body] = await compress_answer([LARGE], accept=coding)
        assert headers["content-encoding"] == coding, coding
        assert headers["vary"] == "Accept-Encoding", coding
        assert "content-length" not in headers, coding
        assert len(body) < len(LARGE) / 50, coding
        assert DECOMPRESS[coding](body) == LARGE, coding


async def test_each_piece_of_a_stream_can_be_read_as_it_comes() -> None:
    for coding in CODINGS:
        lines = [b'{"cursor": "a"}\n', LARGE, b"", b'{"count": 2}\n']
        headers, pieces = await compress_answer(lines, accept=coding, kind="application/x-ndjson")
        assert headers["content-encoding"] == coding, coding
        first, *_ = pieces
        if coding == "gzip":
            assert DECOMPRESS[coding](first) == lines[0], coding
        else:
            assert lines[0] in first, coding  # a block of so few bytes is stored as it is
        assert DECOMPRESS[coding](b"".join(pieces)) == b"".join(lines), coding


async def test_sends_some_answers_uncompressed() -> None:
    cases: list[tuple[bytes, str, dict[str, Any]]] = [
        (LARGE, "", {}),
        (LARGE, "br", {}),
        (LARGE[:1000], "gzip", {}),
        (b"", "gzip", {"status": 204}),
        (LARGE, "gzip", {"kind": "image/jpeg"}),
        (LARGE, "gzip", {"kind": "application/octet-stream"}),
        (LARGE, "gzip", {"more": {"content-encoding": "br"}}),
    ]
    for body, accept, answer in cases:
        headers, sent = await compress_answer([body], accept=accept, **answer)
        coding = answer.get("more", {}).get("content-encoding")
        assert headers.get("content-encoding") == coding, (accept, answer)
        assert headers["content-length"] == str(len(body)), (accept, answer)
        assert sent == [body], (accept, answer)


LINES = "application/x-ndjson"
OFFERED = ("application/json", LINES)


def test_a_type_is_chosen() -> None:
    for accept, chosen in (
        ("", "application/json"),
        ("*/*", "application/json"),
        ("application/*", "application/json"),
        (LINES, LINES),
        ("Application/X-NDJSON ; q=0.9, text/plain", LINES),
        (f"{LINES}, */*", LINES),
        (f"*/*, {LINES}", LINES),
        (f"application/json, {LINES}", "application/json"),
        (f"{LINES}, application/json", LINES),
        (f"application/json;q=0.2, {LINES};q=0.3", LINES),
        ("application/json;q=0, */*", LINES),
        ("application/json; charset=utf-8", "application/json"),
        ("text/html", None),
        ("*/*;q=0", None),
        ("application/json;q=nonsense", None),
        ("application/json;q=nan", None),
        (",;,", None),
    ):
        assert choose_type(accept, OFFERED) == chosen, accept


def test_a_coding_is_chosen() -> None:
    for accept_encoding, chosen in (
        ("", None),
        ("gzip", "gzip"),
        ("X-GZIP", "gzip"),
        ("zstd", "zstd"),
        ("gzip, deflate, br, zstd", "zstd"),
        ("gzip;q=1.0, zstd;q=0.5", "gzip"),
        ("*", "zstd"),
        ("zstd;q=0, *", "gzip"),
        ("br, deflate", None),
        ("gzip;q=0", None),
        ("identity, gzip;q=0.5", None),
        ("identity;q=0.5, gzip", "gzip"),
    ):
        assert choose_coding(accept_encoding) == chosen, accept_encoding


def test_without_warnings_there_is_no_header() -> None:
    assert write_warnings([]) == {}


def test_any_text_comes_whole_in_printable_ascii() -> None:
    for text in ("No key 'frame_numer'.", "ü\n\r\x00\x7f\ud800 \U0001f600"):
        value = write_warnings([text])[NAME]
        assert json.loads(value) == [text], text
        assert value.isascii(), text
        assert value.isprintable(), text


def test_what_is_too_long_is_counted() -> None:
    for size, count in ((100, 1000), (5_000, 3), (1_990, 2)):
        value = write_warnings(["x" * size] * count)[NAME]
        assert len(value) < 2_100, size
        texts = json.loads(value)
        shown = len(texts) - 1
        assert texts[:shown] == ["x" * size] * shown, size
        assert texts[-1] == f"And {count - shown:,} more: a page of JSON has them all.", size
