"""Warnings in a header: any text, and never too long for a proxy."""

import json

from inference_store.api.warnings_header import NAME, write_warnings


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
