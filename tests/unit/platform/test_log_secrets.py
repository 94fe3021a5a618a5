"""The nets beneath the rule that no line holds a secret or a payload."""

import io
import json
import logging

import pytest
import structlog
from pydantic import SecretStr

from inference_store.platform import logs
from inference_store.platform.settings import IngesterSettings

PASSWORD = "p@ss/word-of-this-test"
DSN = "postgresql://someone:p%40ss%2Fword-of-this-test@db:5432/store"


@pytest.fixture
def settings(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> IngesterSettings:
    monkeypatch.chdir(str(tmp_path))
    return IngesterSettings(
        postgres_dsn=SecretStr(DSN),
        s3_access_key=SecretStr("s3-access-key"),
        s3_secret_key=SecretStr("s3-secret"),
    )


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
