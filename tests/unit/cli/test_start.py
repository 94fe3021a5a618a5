"""A service that is set up wrongly ends with a sentence, and never shows a secret."""

from pathlib import Path

import pytest

from inference_store.cli.start import started
from inference_store.store.settings import ApiSettings, IngesterSettings


class Both(IngesterSettings, ApiSettings):
    """Settings of two services."""


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"KAFKA_SASL_PASSWORD": "hunter2"}, "Settings: KAFKA_SASL_PASSWORD is set, but"),
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
    given: dict[str, str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in given.items():
        monkeypatch.setenv(f"INFERENCE_STORE_{name}", value)
    with pytest.raises(SystemExit) as end:
        started(Both, "ingester")
    assert str(end.value).startswith(said)
    assert "hunter2" not in str(end.value)
