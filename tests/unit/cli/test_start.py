"""A service that is set up wrongly ends with a sentence, and never shows a secret."""

from collections.abc import Callable
from pathlib import Path

import pytest

from inference_store.cli.command import start_service
from inference_store.cli.serve import list_checks
from inference_store.platform.settings import (
    ApiSettings,
    Checks,
    IngesterSettings,
    LogSettings,
    ProxySettings,
    RetentionSettings,
)

Start = Callable[..., str]


class Both(IngesterSettings, ApiSettings):
    """Settings of two services."""


@pytest.fixture
def start_in_vain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    """Start, and return the message of its end, which never has the secret hunter2."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("AWS_WEB_IDENTITY_TOKEN_FILE", raising=False)

    def start(
        settings: type[LogSettings], environment: dict[str, str], checks: Checks | None = None
    ) -> str:
        with monkeypatch.context() as changed:
            for name, value in environment.items():
                changed.setenv(f"INFERENCE_STORE_{name}", value)
            with pytest.raises(SystemExit) as end:
                start_service(settings, "ingester", checks)
        assert "hunter2" not in str(end.value)
        return str(end.value)

    return start


def test_it_ends_with_a_sentence(start_in_vain: Start) -> None:
    driver = ": asyncpg is the only driver: write postgresql://"
    parameter = ": it has a parameter beside application_name, options,"
    for setting, value, sentence in (
        ("KAFKA_SASL_PASSWORD", "hunter2", " is set, but"),
        ("POSTGRES_POOL_SIZE", "none", ": "),
        ("S3_SECRET_KEY_FILE", "/nowhere", ": /nowhere cannot"),
        ("POSTGRES_DSN", "hunter2", ": it names no Postgres server"),
        ("POSTGRES_DSN", "mysql://u:hunter2@h/d", ": it names no"),
        ("POSTGRES_DSN", "postgresql:///d", ": it names no Postgres server"),
        ("POSTGRES_DSN", "postgresql://h:p", ": its host or port"),
        ("POSTGRES_DSN", "postgresql://[h/d", ": its host or port"),
        ("POSTGRES_DSN", "postgresql+psycopg2://u:hunter2@h/d", driver),
        ("POSTGRES_DSN", "postgresql://h/d?sslmode=often", ": its sslmode is not one of disable,"),
        ("POSTGRES_DSN", "postgresql://u:1?hunter2=x@h/d", parameter),
        ("POSTGRES_READ_DSN", "replica", ": it names no Postgres server"),
    ):
        output = start_in_vain(Both, {setting: value})
        assert output.startswith(f"INFERENCE_STORE_{setting}{sentence}"), value
    output = start_in_vain(Both, {"POSTGRESS_TLS": "x"})
    assert output.startswith("There is no setting INFERENCE_STORE_POSTGRESS_TLS")


def test_reports_all_mistakes_at_once(start_in_vain: Start) -> None:
    environment = {
        "LOG_LEVEL": "loud",
        "OIDC_ROLES": '{"hunter2"',
        "POSTGRES_DSN": "hunter2",
        "POSTGRES_POOL_SIZE": "ten",
        "POSTGRES_PASSWORD": "hunter2",
        "S3_ACCESS_KEY": "hunter2",
        "S3_SECRET_KEY_FILE": "/nowhere",
        "S3_ENCRYPTION": "SSE-KMS",
        "S3_KMS_KEY_FILE": "x",
        "POSTGRESS_TLS": "x",
        "OIDC_ISSUER": "https://login.example",
        "KAFKA_SASL_MECHANISM": "PLAIN",
        "KAFKA_OAUTH_TOKEN_URL": "issuer",
    }
    lines = start_in_vain(Both, environment).splitlines()
    shortened = [line.replace("INFERENCE_STORE_", "$") for line in lines]
    for sentence in (
        "There is no setting $S3_KMS_KEY_FILE. ",
        "There is no setting $POSTGRESS_TLS. ",
        "$LOG_LEVEL: Input should be 'debug', 'info', 'warning' or 'error'.",
        "$OIDC_ROLES: it is not JSON (",
        "$POSTGRES_DSN: it names no Postgres server",
        "$POSTGRES_POOL_SIZE: Input should be a valid integer",
        "$S3_SECRET_KEY_FILE: /nowhere cannot be read",
        "$S3_ENCRYPTION=SSE-KMS needs $S3_KMS_KEY_ID",
        "$OIDC_ISSUER needs $OIDC_AUDIENCE",
        "$KAFKA_SASL_MECHANISM=PLAIN needs SASL_SSL or SASL_PLAINTEXT",
        "$KAFKA_SASL_MECHANISM=PLAIN needs $KAFKA_SASL_USERNAME",
        "$KAFKA_SASL_MECHANISM=PLAIN needs $KAFKA_SASL_PASSWORD",
        "$KAFKA_OAUTH_TOKEN_URL is set, but $KAFKA_SASL_MECHANISM=PLAIN does not use it",
        "$KAFKA_OAUTH_TOKEN_URL must begin with",
    ):
        assert [line for line in shortened if line.startswith(sentence)], sentence
    # a setting that is wrong itself is reported once
    assert len(shortened) == 14


def test_a_number_says_its_unit_with_an_example(start_in_vain: Start) -> None:
    plain = "write seconds as a plain number, such as"
    finite = f"be a finite number; {plain}"
    days = "; write days as a plain number, such as 365 (the default)."
    for setting, value, sentence in (
        ("TOMBSTONE_SECONDS", "30d", f"as a number; {plain} 2592000 (the default)."),
        ("TOMBSTONE_SECONDS", "0", f"greater than 0; {plain} 2592000 (the default)."),
        ("CERTIFICATE_HEAD_LOCK_DAYS", "1y", days),
        ("RETENTION_INTERVAL_SECONDS", "inf", f"{finite} 300 (the default)."),
        ("RECONCILE_GRACE_SECONDS", "inf", f"{finite} 86400 (the default)."),
    ):
        assert start_in_vain(RetentionSettings, {setting: value}).endswith(sentence), setting
    output = start_in_vain(ApiSettings, {"MAX_METADATA_BYTES": "3M"})
    assert output.endswith("; write bytes as a plain number, such as 1048576 (the default).")


def test_reports_failed_checks_too(start_in_vain: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ROLE_ARN", "role")
    environment = {"RETENTION_ADMIN_PORT": "70000", "CERTIFICATE_KEY": "hunter2"}
    output = start_in_vain(RetentionSettings, environment, list_checks("retention"))
    assert "INFERENCE_STORE_RETENTION_ADMIN_PORT: " in output
    assert "INFERENCE_STORE_CERTIFICATE_KEY: it has no private key" in output
    assert "AWS_ROLE_ARN is set and AWS_WEB_IDENTITY_TOKEN_FILE is not" in output
    monkeypatch.delenv("AWS_ROLE_ARN")

    environment = {"API_TOKEN": "hunter2", "OIDC_ROLES": '{"ops": [{"role": "hunter2"}]}'}
    lines = start_in_vain(ApiSettings, environment, list_checks("api")).splitlines()
    assert [line.split(" it ")[0].split(" Input ")[0] for line in lines] == [
        "INFERENCE_STORE_API_TOKEN:",
        "INFERENCE_STORE_OIDC_ROLES: ops.0.role:",
    ]

    environment = {"PROXY_UPSTREAM": "models", "PROXY_PROTOCOLS": "v2,v3,v4", "PROXY_PORT": "x"}
    lines = start_in_vain(ProxySettings, environment, list_checks("proxy")).splitlines()
    names = [line.removeprefix("INFERENCE_STORE_PROXY_").split(" ")[0] for line in lines]
    assert names == ["PORT:", "UPSTREAM:", "PROTOCOLS:", "PROTOCOLS:"]
