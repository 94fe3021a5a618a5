"""Text of others cannot forge a line of the log, nor send control codes to a terminal."""

import io
import json
import logging

import structlog

from inference_store.platform import logs
from inference_store.platform.settings import LogSettings
from tests.settings import make_settings

# A new line, an escape sequence, its eight-bit form, a line separator, a carriage return.
HOSTILE = "a\n2026-01-01 [error] forged \x1b[31mred \x9b31m \u2028 \r end"


def log_hostile(log_format: str) -> tuple[str, str]:
    """Return the log lines of hostile text in every position, and of an error that quotes it."""
    texts, errors = io.StringIO(), io.StringIO()
    settings = make_settings(LogSettings, log_format=log_format)
    logs.configure(settings, service="t", stream=texts)
    log = structlog.get_logger()
    log.warning("a value", key=HOSTILE, inner={"deep": [HOSTILE]}, **{HOSTILE: 1})
    log.warning(HOSTILE)
    logging.getLogger("of a library").warning("it says %s", HOSTILE)
    logs.configure(settings, service="t", stream=errors)
    try:
        raise ValueError(HOSTILE)
    except ValueError:
        structlog.get_logger().exception("it failed")
    text, error = texts.getvalue(), errors.getvalue()
    assert all(character.isprintable() or character == "\n" for character in text + error)
    return text, error


def test_a_json_log_is_one_object_a_line() -> None:
    text, error = log_hostile("json")
    lines = (text + error).splitlines()
    assert [json.loads(line)["service"] for line in lines] == ["t"] * 4
    assert json.loads(lines[0])["key"] == HOSTILE


def test_a_text_log_is_one_line_a_message() -> None:
    text, _ = log_hostile("text")
    assert len(text.splitlines()) == 3
    assert "forged" in text


def test_an_error_in_a_text_log_stays_beneath_its_message() -> None:
    _, error = log_hostile("text")
    first, *others = error.splitlines()
    assert "it failed" in first
    assert all(line.startswith("    ") for line in others)
