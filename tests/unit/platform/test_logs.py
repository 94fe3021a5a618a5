"""Text of others cannot forge a line of the log, nor send control codes to a terminal."""

import io
import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from inference_store.platform import logs
from inference_store.platform.settings import LogSettings
from tests.settings import make_settings

# A new line, an escape sequence, its eight-bit form, a line separator, a carriage return.
HOSTILE = "a\n2026-01-01 [error] forged \x1b[31mred \x9b31m \u2028 \r end"


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    """Reset logging afterwards."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()
    root.handlers[:], root.level = handlers, level


def log_hostile_text(log_format: str) -> str:
    """Return the log lines of hostile text in every position."""
    stream = io.StringIO()
    logs.configure(make_settings(LogSettings, log_format=log_format), service="t", stream=stream)
    log = structlog.get_logger()
    log.warning("a value", key=HOSTILE, inner={"deep": [HOSTILE]}, **{HOSTILE: 1})
    log.warning(HOSTILE)
    logging.getLogger("of a library").warning("it says %s", HOSTILE)
    return stream.getvalue()


def log_hostile_error(log_format: str) -> str:
    """Return the log lines of an error that quotes hostile text."""
    stream = io.StringIO()
    logs.configure(make_settings(LogSettings, log_format=log_format), service="t", stream=stream)
    try:
        raise ValueError(HOSTILE)
    except ValueError:
        structlog.get_logger().exception("it failed")
    return stream.getvalue()


def test_a_json_log_is_one_object_a_line() -> None:
    text = log_hostile_text("json") + log_hostile_error("json")
    lines = text.splitlines()
    assert [json.loads(line)["service"] for line in lines] == ["t"] * 4
    assert json.loads(lines[0])["key"] == HOSTILE
    assert all(character.isprintable() or character == "\n" for character in text)


def test_a_text_log_is_one_line_a_message() -> None:
    text = log_hostile_text("text")
    assert len(text.splitlines()) == 3
    assert all(character.isprintable() or character == "\n" for character in text)
    assert "forged" in text


def test_an_error_in_a_text_log_stays_beneath_its_message() -> None:
    text = log_hostile_error("text")
    first, *others = text.splitlines()
    assert "it failed" in first
    assert all(line.startswith("    ") for line in others)
    assert all(character.isprintable() or character == "\n" for character in text)
