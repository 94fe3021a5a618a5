"""Answers show what came, whatever it was."""

import asyncio
import json
import threading
import zlib
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from starlette.types import Message, Receive, Scope, Send
from structlog.testing import capture_logs

from inference_store.api.answer import (
    NAME,
    Answer,
    build_problem,
    encode_json,
    find_refusal,
    write_warnings,
)
from inference_store.api.http import (
    CODINGS,
    MOST_ITEMS,
    ExactRequest,
    choose_coding,
    choose_type,
    decode_segment,
    escape_segment,
    read_in_thread,
)
from inference_store.api.inference_models import convert_metadata
from inference_store.api.middleware import Foreground, Surroundings
from inference_store.inference.errors import ObjectStoreUnavailable, QueryTimeout, TooLarge
from inference_store.inference.json_text import exact_json
from inference_store.inference.layout import is_id
from inference_store.inference.metadata import Entry
from inference_store.platform.json_encoding import escape_text, fit_times
from inference_store.query.deadline import OutOfTime, Overloaded


def test_times_numbers_and_odd_text() -> None:
    text, number = escape_text("\ud800\0"), Decimal("1E+400")
    answer = Answer({"at": datetime(2026, 11, 1, tzinfo=UTC), "number": number, "text": text})
    body = bytes(answer.body)
    assert b'"at":"2026-11-01T00:00:00.000000Z"' in body
    assert b'"number":1E+400' in body
    assert json.loads(body)["text"] == "\ud800\0"


def test_times_that_the_encoder_writes_are_the_same() -> None:
    for at in (
        datetime(2026, 11, 1, 12, 30, 15, 123456, tzinfo=UTC),
        datetime(2026, 11, 1, 12, 30, 15, 120000, tzinfo=UTC),
        datetime(2026, 11, 1, 12, 30, 15, 7, tzinfo=UTC),
        datetime(2026, 11, 1, tzinfo=UTC),
        datetime(2026, 11, 1, 0, 0, 0, 5, tzinfo=timezone(timedelta(hours=2))),
        datetime(1, 1, 1, 0, 0, 0, 1, tzinfo=UTC),
        datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
        None,
    ):
        document = {"at": at, "text": "\ud800"}
        expected = encode_json(document)
        fit_times(document, ["at"])
        assert encode_json(document, times_fit=True) == expected, at
        document["text"] = "plain"
        assert encode_json(document, times_fit=True) == encode_json({"at": at, "text": "plain"}), at


def test_a_value_is_shown_as_its_type() -> None:
    for declared, value, expected in (
        ("int", "239", "239"),
        ("int", "987.0", "987"),
        ("int", "12345678901234567890123", "12345678901234567890123"),
        ("float", "0.10", "0.1"),
        ("number", "1e3", "1000"),
        ("float", "NaN", '"NaN"'),
        ("int", "many", '"many"'),
        ("bool", "TRUE", "true"),
        ("bool", "0", "false"),
        ("bool", "perhaps", '"perhaps"'),
        ("string", "239", '"239"'),
        ("timestamp", "2026-11-01", '"2026-11-01"'),
        ("json", '{"angle": 1.50}', '{"angle": 1.50}'),
        ("json", "[1, 2", '"[1, 2"'),
        ("json", '"text"', '"text"'),
        ("", "239", "239"),
        ("", "true", "true"),
        ("", "hallway", '"hallway"'),
        ("", '"quoted"', '"\\"quoted\\""'),
        ("camera", "[1]", "[1]"),
        ("int", None, "null"),
    ):
        text = encode_json(convert_metadata([Entry("key", declared, value, "extended")])).decode()
        assert text == f'{{"key":{expected}}}', declared
        assert json.loads(text, parse_float=Decimal) is not None, declared


def test_every_text_can_be_shown() -> None:
    entries = [
        Entry("\ud800", "string", "\udc00", "extended"),
        Entry("", "string", "no key", "extended"),
        Entry("twice", "int", "1", "standard"),
        Entry("twice", "int", "2", "extended"),
    ]
    document = json.loads(encode_json(convert_metadata(entries)))
    assert document == {"\\ud800": "\udc00", "twice": [1, 2]}


# Answers are compressed whole and by the piece, and only if that is worth it.

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

    sent = [(b"accept-encoding", accept.encode())]
    scope = {"type": "http", "method": "GET", "path": "/", "headers": sent}
    await Surroundings(app, Foreground())(scope, receive, send)
    start, *bodies = messages
    headers = {name.decode().lower(): value.decode() for name, value in start["headers"]}
    return headers, [body["body"] for body in bodies]


async def test_an_answer_is_compressed() -> None:
    for coding in CODINGS:
        headers, [body] = await compress_answer([LARGE], accept=coding)
        assert headers["content-encoding"] == coding, coding
        assert headers["vary"] == "Accept-Encoding", coding
        assert headers["content-length"] == str(len(body)), coding
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
        assert texts[-1] == f"And {count - shown:,} more: the JSON page lists them all.", size


# Bodies are read exactly, ids in paths decoded once.


def test_numbers_are_exact() -> None:
    numbers = exact_json(b'[0.1, 1e400, -0.0, 98765432109876543210, 7, "0.1"]')
    decimals = [Decimal("0.1"), Decimal("1e400"), Decimal("-0.0")]
    assert numbers == [*decimals, 98765432109876543210, 7, "0.1"]
    assert isinstance(numbers[4], int)


def test_rejects_bodies_that_are_not_json(subtests: pytest.Subtests) -> None:
    for wrong in (b"{", b"\xff", b"NaN", b"[" * 100_000, b"", b"1 2", b"1e9999999999999999999"):
        with subtests.test(wrong=wrong), pytest.raises(json.JSONDecodeError):
            exact_json(wrong)


def _request(pieces: list[bytes]) -> ExactRequest:
    """Make a request whose body comes in these pieces, each taken from the list as it is read."""

    async def receive() -> Any:
        return {"type": "http.request", "body": pieces.pop(0), "more_body": bool(pieces)}

    headers = [(b"content-type", b"application/json")]
    return ExactRequest({"type": "http", "headers": headers}, receive)


async def test_a_body_of_too_many_items_or_bytes_is_not_parsed() -> None:
    for sign in (b",", b"[", b"{"):
        await _request([sign * 10_000, sign * (MOST_ITEMS - 10_000)]).load(1_000_000)
        over = _request([sign * 10_000, sign * (MOST_ITEMS - 9_999)])
        with pytest.raises(TooLarge, match="20,000 items"):
            await over.load(1_000_000)
    pieces = [b" " * 10] * 5
    with pytest.raises(TooLarge, match="The body is over"):
        await _request(pieces).load(25)
    assert len(pieces) == 2, "it is not read to its end"


async def test_a_large_body_is_parsed_beside_the_loop() -> None:
    let_go = threading.Event()
    busy = asyncio.create_task(read_in_thread(let_go.wait, 300))
    small, large = (json.dumps(" " * size).encode() for size in (60_000, 70_000))
    parsing = [asyncio.create_task(_parse_body(body)) for body in (small, large)]
    await parsing[0]
    assert not parsing[1].done(), "it waits for the thread that reads"
    let_go.set()
    assert await busy
    assert await parsing[1] == " " * 70_000


async def _parse_body(body: bytes) -> Any:
    request = _request([body])
    await request.load(1_000_000)
    return await request.read_content()


@given(st.text(st.characters(codec="utf-8"), max_size=256).filter(is_id))
def test_any_id_is_a_segment(name: str) -> None:
    assert "/" not in escape_segment(name)
    assert decode_segment(escape_segment(name)) == name


def test_ids_that_are_none(subtests: pytest.Subtests) -> None:
    for segment in ("%00", "%ff", "x" * 257, "", ".", "%2e%2E"):
        with subtests.test(segment), pytest.raises(ValueError, match="id"):
            decode_segment(segment)


def test_distinguishes_overload_from_timeouts() -> None:
    for error, kind in (
        (PoolTimeout("QueuePool limit of size 10 overflow 0 reached"), "busy"),
        (Overloaded(), "busy"),
        (OutOfTime(), "query-timeout"),
        (OSError("Connection refused"), "unavailable"),
    ):
        answer = build_problem(find_refusal(error))
        body = json.loads(bytes(answer.body))
        assert (answer.status_code, body["type"]) == (503, f"/docs/errors#{kind}"), error
        assert int(answer.headers["Retry-After"]) > 0, error
        # narrowing a question that did not run does not help
        assert ("narrow" in body["detail"]) == (kind == "query-timeout"), error


def test_a_slow_look_up_gets_no_advice_to_narrow_its_window() -> None:
    error = DBAPIError("SELECT", {}, Exception("canceling statement due to statement timeout"))
    refused = find_refusal(error)
    assert isinstance(refused, QueryTimeout)
    assert ("again" in refused.detail, "narrow" in refused.detail) == (True, False)


def test_callers_are_not_told_where_the_object_store_is() -> None:
    words = "Error performing GET http://127.0.0.1:18800/opb/ledger/0000000009"
    with capture_logs() as lines:
        refused = find_refusal(ObjectStoreUnavailable(words))
    assert refused.detail.startswith("The object store is unavailable, or is not taking requests.")
    assert "127.0.0.1" not in refused.detail
    assert [line["error"] for line in lines] == [words]
