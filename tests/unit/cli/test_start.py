"""A service that is set up wrongly ends with a sentence, and never shows a secret."""

from pathlib import Path

import pytest

from inference_store.cli.start import started
from inference_store.store.settings import IngesterSettings


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"KAFKA_SASL_PASSWORD": "hunter2"}, "Settings: KAFKA_SASL_PASSWORD is set, but"),
        ({"POSTGRES_POOL_SIZE": "none"}, "INFERENCE_STORE_POSTGRES_POOL_SIZE: "),
        ({"S3_SECRET_KEY_FILE": "/nowhere"}, "INFERENCE_STORE_S3_SECRET_KEY_FILE: /nowhere cannot"),
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
        started(IngesterSettings, "ingester")
    assert str(end.value).startswith(said)
    assert "hunter2" not in str(end.value)
