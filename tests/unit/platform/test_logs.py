"""Text of others cannot forge a line of the log, nor send control codes to a terminal."""

import asyncio
import io
import json
import logging
import subprocess
import sys
from itertools import product

import pytest
import structlog
from prometheus_client import generate_latest

from inference_store.platform import logs, traces
from inference_store.platform.freed_memory import keep_releasing, read_resident_bytes
from inference_store.platform.metrics import (
    CAPTURE_SECONDS,
    CAPTURES_DROPPED,
    SPOOLED,
    MultiprocessMetrics,
    Samples,
    list_samples,
)
from inference_store.platform.settings import IngesterSettings, LogSettings
from inference_store.platform.traces import throttle_logs
from tests.polling import until
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


def test_a_log_is_one_object_or_line_a_message() -> None:
    text, error = log_hostile("json")
    lines = (text + error).splitlines()
    assert [json.loads(line)["service"] for line in lines] == ["t"] * 4
    assert json.loads(lines[0])["key"] == HOSTILE
    text, _ = log_hostile("text")
    assert len(text.splitlines()) == 3
    assert "forged" in text
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


def log_to(settings: IngesterSettings) -> io.StringIO:
    stream = io.StringIO()
    logs.configure(settings, service="ingester", stream=stream)
    return stream


def test_a_secret_is_removed_everywhere(settings: IngesterSettings) -> None:
    secrets = (PASSWORD, "p%40ss%2Fword-of-this-test", "s3-secret")
    for log_format, secret in product(("json", "text"), secrets):
        stream = log_to(settings.model_copy(update={"log_format": log_format}))
        quoted = {"error": f"no {secret} no", "bytes": secret.encode()}
        structlog.get_logger().warning(f"wrong {secret}", **quoted)
        logging.getLogger("some.library").warning("it says %s", secret)
        try:
            raise ValueError(f"in an exception: {secret}")
        except ValueError:
            structlog.get_logger().exception("failed")
        output = stream.getvalue()
        assert secret not in output, log_format
        assert output.count("***") >= 5, (log_format, secret)


def test_the_host_of_an_address_is_no_secret(settings: IngesterSettings) -> None:
    secrets = logs.secrets_of(settings)
    assert PASSWORD in secrets
    assert not [secret for secret in secrets if "db:5432" in secret or secret == "someone"]


def test_a_long_text_is_cut_and_a_library_tells_nothing_at_debug(
    settings: IngesterSettings,
) -> None:
    stream = log_to(settings)
    logging.getLogger().setLevel(logging.DEBUG)
    logging.getLogger("aiokafka.conn").debug("response: %r", b"a record")
    assert stream.getvalue() == ""
    structlog.get_logger().info("long", error="x" * 10_000)
    event = json.loads(stream.getvalue())
    assert len(event["error"]) == 2000
    assert event["service"] == "ingester"
    assert "trace_id" not in event


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


# Off without its variables, and then nothing of the SDK is even imported.

ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}


def test_the_environment_decides_whether_the_sdk_is_imported() -> None:
    for environment, is_requested in (
        ({}, False),
        (ENDPOINT, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:4318/v1/traces"}, True),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, True),
        (ENDPOINT | {"OTEL_TRACES_EXPORTER": "none"}, False),
        (ENDPOINT | {"OTEL_TRACES_EXPORTER": ""}, True),
        (ENDPOINT | {"OTEL_SDK_DISABLED": "true"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": " "}, False),
    ):
        assert traces.is_requested(environment) is is_requested, environment
    # tests/unit/cli/test_imports.py says the same of each service.
    assert run(SDK, {}).strip().endswith("False False")
    assert run(SDK, ENDPOINT).strip().endswith("True True")
    # one that is not supported is logged
    output = run(SDK, ENDPOINT | {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"})
    assert "only http/protobuf is spoken" in output
    assert "False False" in output


def run(code: str, environment: dict[str, str]) -> str:
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return done.stdout + done.stderr


SDK = (
    "import sys\n"
    "from inference_store.platform import traces\n"
    "traces.configure('api')\n"
    "print(traces.is_on(), any(name.startswith('opentelemetry.sdk') for name in sys.modules))\n"
    "traces.stop()"
)


# `/metrics` of a service with two processes has one sample for both.


def read_sample(metrics: MultiprocessMetrics, name: str) -> float | None:
    lines = generate_latest(metrics).decode().splitlines()
    samples = [line for line in lines if line.startswith(name)]
    assert len(samples) <= 1
    return float(samples[0].rpartition(" ")[2]) if samples else None


def test_counters_are_summed_over_processes_and_gauges_over_those_that_live() -> None:
    samples: list[Samples] = [()]
    metrics = MultiprocessMetrics("proxy", lambda: samples[0])
    dropped = 'inference_store_proxy_captures_dropped_total{reason="left"}'
    CAPTURES_DROPPED.labels("left").inc()
    own = read_sample(metrics, dropped) or 0.0
    spooled = read_sample(metrics, "inference_store_proxy_captures_spooled") or 0.0
    samples[0] = [
        ("inference_store_proxy_captures_dropped_total", {"reason": "left"}, 4.0),
        ("inference_store_proxy_captures_spooled", {}, 2.0),
        ("inference_store_proxy_captures_dropped_total", {"reason": "new"}, 1.0),
    ]
    assert read_sample(metrics, dropped) == own + 4
    assert read_sample(metrics, dropped.replace("left", "new")) == 1
    assert read_sample(metrics, "inference_store_proxy_captures_spooled") == spooled + 2
    metrics.add_former()
    samples[0] = [("inference_store_proxy_captures_dropped_total", {"reason": "left"}, 3.0)]
    assert read_sample(metrics, dropped) == own + 7
    assert read_sample(metrics, "inference_store_proxy_captures_spooled") == spooled


def test_shows_metrics_of_the_service_and_of_the_process() -> None:
    CAPTURE_SECONDS.labels("upload").observe(0.2)
    SPOOLED.set_function(lambda: 0)
    names = {name for name, _, _ in list_samples("proxy")}
    assert "inference_store_proxy_capture_seconds_bucket" in names
    assert "process_cpu_seconds_total" in names
    assert not [name for name in names if "heartbeat" in name or name.endswith("_created")]


# Memory that was freed goes back to the system.

FLOOD = 256 << 20


async def measure() -> int:
    return read_resident_bytes()


async def test_what_a_flood_took_goes_back() -> None:
    """One block that stays at the end keeps all before it, unless it is released."""
    before = read_resident_bytes()
    releasing = asyncio.create_task(keep_releasing(0.05))
    await asyncio.sleep(0)  # it begins
    blocks = [b"x" * 100_000 + str(at).encode() for at in range(FLOOD // 100_000)]
    assert read_resident_bytes() > before + FLOOD // 2
    last = blocks.pop()
    blocks.clear()
    await until(measure, lambda size: size < before + FLOOD // 2)
    assert last
    releasing.cancel()
