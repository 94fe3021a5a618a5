"""Which type and which coding a request's headers ask for."""

import json

from inference_store.api.negotiation import choose_coding, choose_type
from inference_store.api.warnings_header import NAME, write_warnings

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
