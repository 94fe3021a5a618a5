"""Answers are compressed whole and by the piece, and only if that is worth it."""

import zlib
from collections.abc import Callable

import cramjam
import pytest
from starlette.types import Message, Receive, Scope, Send

from inference_store.api.compression import COMPRESSORS, Compression
from inference_store.api.negotiation import CODINGS

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


def test_every_coding_is_made() -> None:
    assert set(COMPRESSORS) == set(CODINGS)


@pytest.mark.parametrize("coding", CODINGS)
async def test_an_answer_is_compressed(coding: str) -> None:
    headers, [body] = await compress_answer([LARGE], accept=coding)
    assert headers["content-encoding"] == coding
    assert headers["vary"] == "Accept-Encoding"
    assert "content-length" not in headers
    assert len(body) < len(LARGE) / 50
    assert DECOMPRESS[coding](body) == LARGE


@pytest.mark.parametrize("coding", CODINGS)
async def test_each_piece_of_a_stream_can_be_read_as_it_comes(coding: str) -> None:
    lines = [b'{"cursor": "a"}\n', LARGE, b"", b'{"count": 2}\n']
    headers, pieces = await compress_answer(lines, accept=coding, kind="application/x-ndjson")
    assert headers["content-encoding"] == coding
    first, *_ = pieces
    if coding == "gzip":
        assert DECOMPRESS[coding](first) == lines[0]
    else:
        assert lines[0] in first  # a block of so few bytes is stored as it is
    assert DECOMPRESS[coding](b"".join(pieces)) == b"".join(lines)


@pytest.mark.parametrize(
    ("pieces", "accept", "kind", "status", "more"),
    [
        ([LARGE], "", "application/json", 200, {}),
        ([LARGE], "br", "application/json", 200, {}),
        ([LARGE[:1000]], "gzip", "application/json", 200, {}),
        ([b""], "gzip", "application/json", 204, {}),
        ([LARGE], "gzip", "image/jpeg", 200, {}),
        ([LARGE], "gzip", "application/octet-stream", 200, {}),
        ([LARGE], "gzip", "application/json", 200, {"content-encoding": "br"}),
    ],
)
async def test_sends_some_answers_uncompressed(
    pieces: list[bytes], accept: str, kind: str, status: int, more: dict[str, str]
) -> None:
    headers, sent = await compress_answer(
        pieces, accept=accept, kind=kind, status=status, more=more
    )
    assert headers.get("content-encoding") == more.get("content-encoding")
    assert headers["content-length"] == str(sum(map(len, pieces)))
    assert sent == pieces
