"""Text of others cannot forge a line of the log, nor send control codes to a terminal."""

import io
import json
import logging

import pytest
import structlog

from inference_store.platform import logs
from inference_store.platform.settings import IngesterSettings, LogSettings
from inference_store.platform.traces import throttle_logs
from inference_store.retention.run import Schedule
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


PASSWORD = "p@ss/word-of-this-test"
DSN = "postgresql://someone:p%40ss%2Fword-of-this-test@db:5432/store"


@pytest.fixture
def settings(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> IngesterSettings:
    monkeypatch.chdir(str(tmp_path))
    keys = {"s3_access_key": "s3-access-key", "s3_secret_key": "s3-secret"}
    return IngesterSettings.model_validate(keys | {"postgres_dsn": DSN})


@pytest.fixture
def stream(settings: IngesterSettings) -> io.StringIO:
    buffer = io.StringIO()
    logs.configure(settings, service="ingester", stream=buffer)
    return buffer


def test_a_secret_is_removed_everywhere(stream: io.StringIO) -> None:
    for secret in (PASSWORD, "p%40ss%2Fword-of-this-test", "s3-secret"):
        quoted = {"error": f"no {secret} no", "bytes": secret.encode()}
        structlog.get_logger().warning(f"wrong {secret}", **quoted)
        logging.getLogger("some.library").warning("it says %s", secret)
        try:
            raise ValueError(f"in an exception: {secret}")
        except ValueError:
            structlog.get_logger().exception("failed")
        output = stream.getvalue()
        assert secret not in output
        assert output.count("***") >= 5, secret
        stream.truncate(0)


def test_the_host_of_an_address_is_no_secret(settings: IngesterSettings) -> None:
    secrets = logs.secrets_of(settings)
    assert PASSWORD in secrets
    assert not [secret for secret in secrets if "db:5432" in secret or secret == "someone"]


def test_a_long_text_is_cut_and_a_line_is_whole(stream: io.StringIO) -> None:
    structlog.get_logger().info("long", error="x" * 10_000)
    event = json.loads(stream.getvalue())
    assert len(event["error"]) == 2000
    assert event["service"] == "ingester"
    assert "trace_id" not in event


def test_a_library_at_debug_does_not_tell_what_it_receives(stream: io.StringIO) -> None:
    logging.getLogger().setLevel(logging.DEBUG)
    logging.getLogger("aiokafka.conn").debug("response: %r", b"a record")
    assert stream.getvalue() == ""


def test_logs_each_kind_of_message_of_a_library_once() -> None:
    logger = logging.getLogger("chatterbox.inner")
    logged: list[str] = []

    class Listening(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            logged.append(record.getMessage())

    logger.addHandler(Listening())
    throttle_logs("chatterbox")
    throttle_logs("chatterbox")
    for port in (1, 2, 3):
        logger.warning("no connection to %d", port)
        logger.warning("no coordinator")
    assert logged == ["no connection to 1", "no coordinator"]


async def test_the_schedule_of_retention_is_no_part_of_its_log() -> None:
    """A run has a line of its own; one that is late is still reported."""
    stream = io.StringIO()
    logs.configure(make_settings(LogSettings), service="retention", stream=stream)
    schedule = Schedule(3600)
    schedule.start()
    await schedule.due.wait()
    schedule.stop()
    assert stream.getvalue() == ""
    logging.getLogger("apscheduler.executors.default").warning("late")
    assert "late" in stream.getvalue()
