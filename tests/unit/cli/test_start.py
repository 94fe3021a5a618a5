"""A service that is set up wrongly ends with a sentence, and never shows a secret."""

from pathlib import Path

import pytest

from inference_store.cli.api import CHECKS as API_CHECKS
from inference_store.cli.proxy import CHECKS as PROXY_CHECKS
from inference_store.cli.retention import CHECKS as RETENTION_CHECKS
from inference_store.cli.start import start_service
from inference_store.platform.settings import (
    ApiSettings,
    Checks,
    IngesterSettings,
    LogSettings,
    ProxySettings,
    RetentionSettings,
)


class Both(IngesterSettings, ApiSettings):
    """Settings of two services."""


@pytest.mark.parametrize(
    ("environment", "sentence"),
    [
        ({"KAFKA_SASL_PASSWORD": "hunter2"}, "INFERENCE_STORE_KAFKA_SASL_PASSWORD is set, but"),
        ({"POSTGRES_POOL_SIZE": "none"}, "INFERENCE_STORE_POSTGRES_POOL_SIZE: "),
        ({"S3_SECRET_KEY_FILE": "/nowhere"}, "INFERENCE_STORE_S3_SECRET_KEY_FILE: /nowhere cannot"),
        ({"POSTGRES_DSN": "hunter2"}, "INFERENCE_STORE_POSTGRES_DSN: it names no server"),
        ({"POSTGRES_DSN": "mysql://u:hunter2@h/d"}, "INFERENCE_STORE_POSTGRES_DSN: it names no"),
        ({"POSTGRES_DSN": "postgresql:///d"}, "INFERENCE_STORE_POSTGRES_DSN: it names no server"),
        ({"POSTGRES_DSN": "postgresql://h:p"}, "INFERENCE_STORE_POSTGRES_DSN: its host or port"),
        ({"POSTGRES_DSN": "postgresql://[h/d"}, "INFERENCE_STORE_POSTGRES_DSN: its host or port"),
        (
            {"POSTGRES_DSN": "postgresql+psycopg2://u:hunter2@h/d"},
            "INFERENCE_STORE_POSTGRES_DSN: its driver is not here, asyncpg is: write postgresql://",
        ),
        (
            {"POSTGRES_DSN": "postgresql://h/d?sslmode=often"},
            "INFERENCE_STORE_POSTGRES_DSN: its sslmode is not one of disable,",
        ),
        (
            {"POSTGRES_DSN": "postgresql://u:1?hunter2=x@h/d"},
            "INFERENCE_STORE_POSTGRES_DSN: it has a parameter beside application_name, options,",
        ),
        ({"POSTGRES_READ_DSN": "replica"}, "INFERENCE_STORE_POSTGRES_READ_DSN: it names no server"),
        ({"POSTGRESS_TLS": "x"}, "There is no setting INFERENCE_STORE_POSTGRESS_TLS"),
    ],
)
def test_it_ends_with_a_sentence(
    environment: dict[str, str], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert start_in_vain(Both, environment, tmp_path, monkeypatch).startswith(sentence)


def start_in_vain(
    settings: type[LogSettings],
    environment: dict[str, str],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    checks: Checks | None = None,
) -> str:
    """Return the message of a start that ends; it never has the secret hunter2."""
    monkeypatch.chdir(folder)
    for name, value in environment.items():
        monkeypatch.setenv(f"INFERENCE_STORE_{name}", value)
    with pytest.raises(SystemExit) as end:
        start_service(settings, "ingester", checks)
    assert "hunter2" not in str(end.value)
    return str(end.value)


def test_reports_all_mistakes_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = {
        "LOG_LEVEL": "loud",
        "OIDC_ROLES": '{"hunter2"',
        "POSTGRES_DSN": "hunter2",
        "POSTGRES_POOL_SIZE": "ten",
        "POSTGRES_PASSWORD": "hunter2",
        "QUERIES_AT_ONCE": "9",
        "S3_ACCESS_KEY": "hunter2",
        "S3_SECRET_KEY_FILE": "/nowhere",
        "S3_ENCRYPTION": "SSE-KMS",
        "S3_ROLE_ARN": "hunter2",
        "S3_KMS_KEY_FILE": "x",
        "POSTGRESS_TLS": "x",
        "OIDC_ISSUER": "https://login.example",
        "KAFKA_SASL_MECHANISM": "PLAIN",
        "KAFKA_OAUTH_TOKEN_URL": "issuer",
    }
    lines = start_in_vain(Both, environment, tmp_path, monkeypatch).splitlines()
    shortened = [line.replace("INFERENCE_STORE_", "$") for line in lines]
    for sentence in (
        "There is no setting $S3_KMS_KEY_FILE. ",
        "There is no setting $POSTGRESS_TLS. ",
        "$LOG_LEVEL: Input should be 'debug', 'info', 'warning' or 'error'.",
        "$OIDC_ROLES: it is no JSON (",
        "$POSTGRES_DSN: it names no server",
        "$POSTGRES_POOL_SIZE: Input should be a valid integer",
        "$S3_SECRET_KEY_FILE: /nowhere cannot be read",
        "$S3_ENCRYPTION=SSE-KMS needs $S3_KMS_KEY_ID",
        "$S3_ACCESS_KEY and $S3_ROLE_ARN are set",
        "$OIDC_ISSUER needs $OIDC_AUDIENCE",
        "$KAFKA_SASL_MECHANISM=PLAIN needs SASL_SSL or SASL_PLAINTEXT",
        "$KAFKA_SASL_MECHANISM=PLAIN needs $KAFKA_SASL_USERNAME",
        "$KAFKA_SASL_MECHANISM=PLAIN needs $KAFKA_SASL_PASSWORD",
        "$KAFKA_OAUTH_TOKEN_URL is set, but $KAFKA_SASL_MECHANISM=PLAIN does not use it",
        "$KAFKA_OAUTH_TOKEN_URL must begin with",
    ):
        assert [line for line in shortened if line.startswith(sentence)], sentence
    # a setting that is wrong itself is reported once
    assert len(shortened) == 15


@pytest.mark.parametrize(
    ("environment", "sentence"),
    [
        (
            {"TOMBSTONE_SECONDS": "30d"},
            "parse string as a number; write seconds as a plain number, such as 2592000 (30 days,"
            " the default).",
        ),
        (
            {"RETENTION_POLL_SECONDS": "0"},
            "greater than 0; write seconds as a plain number, such as 1 (the default).",
        ),
        (
            {"CERTIFICATE_HEAD_LOCK_DAYS": "1y"},
            "; write days as a plain number, such as 365 (the default).",
        ),
        (
            {"RETENTION_INTERVAL_SECONDS": "inf"},
            "be a finite number; write seconds as a plain number, such as 300 (5 minutes, the"
            " default).",
        ),
        (
            {"RECONCILE_GRACE_SECONDS": "inf"},
            "be a finite number; write seconds as a plain number, such as 86400 (1 day, the"
            " default).",
        ),
    ],
)
def test_a_duration_says_its_unit_with_an_example(
    environment: dict[str, str], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert start_in_vain(RetentionSettings, environment, tmp_path, monkeypatch).endswith(sentence)


def test_a_size_says_its_unit_with_an_example(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = start_in_vain(ApiSettings, {"API_MAX_BODY_BYTES": "3M"}, tmp_path, monkeypatch)
    assert output.endswith("; write bytes as a plain number, such as 2097152 (2 MiB, the default).")


def test_reports_failed_checks_with_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_WEB_IDENTITY_TOKEN_FILE", raising=False)
    environment = {
        "CERTIFICATE_KEY": "hunter2",
        "S3_ROLE_ARN": "role",
        "RETENTION_ADMIN_PORT": "70000",
    }
    output = start_in_vain(RetentionSettings, environment, tmp_path, monkeypatch, RETENTION_CHECKS)
    assert "INFERENCE_STORE_RETENTION_ADMIN_PORT: " in output
    assert "INFERENCE_STORE_CERTIFICATE_KEY: it has no private key" in output
    assert "INFERENCE_STORE_S3_WEB_IDENTITY_TOKEN_FILE" in output


def test_reports_unknown_roles_with_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = {"API_TOKEN": "hunter2", "OIDC_ROLES": '{"ops": [{"role": "hunter2"}]}'}
    lines = start_in_vain(ApiSettings, environment, tmp_path, monkeypatch, API_CHECKS).splitlines()
    assert [line.split(" it ")[0].split(" Input ")[0] for line in lines] == [
        "INFERENCE_STORE_API_TOKEN:",
        "INFERENCE_STORE_OIDC_ROLES: ops.0.role:",
    ]


def test_reports_wrong_upstreams_and_protocols_with_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = {"PROXY_UPSTREAM": "models", "PROXY_PROTOCOLS": "v2,v3,v4", "PROXY_PORT": "x"}
    lines = start_in_vain(
        ProxySettings, environment, tmp_path, monkeypatch, PROXY_CHECKS
    ).splitlines()
    assert [line.split(" ")[0] for line in lines] == [
        "INFERENCE_STORE_PROXY_PORT:",
        "INFERENCE_STORE_PROXY_PROTOCOLS:",
        "INFERENCE_STORE_PROXY_PROTOCOLS:",
        "INFERENCE_STORE_PROXY_UPSTREAM:",
    ]
