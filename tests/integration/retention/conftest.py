from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.erasure.ledger import Ledger
from inference_store.objects import Blobs
from inference_store.platform.settings import RetentionSettings
from inference_store.retention import housekeeping, work
from inference_store.retention import marker as marking
from inference_store.retention.eraser import Eraser
from inference_store.retention.marker import Marker
from inference_store.retention.orphan_eraser import QuarantineEraser
from tests.integration.backups import backup, restore
from tests.servers.minio import S3

from .stored import NoPace, Storing, environment_of
from .stranger import Stranger

__all__ = ["NoPace", "backup", "restore"]
_SHARES = (
    (work, "_SHARE_SECONDS"),
    (work, "_ERASURES_SECONDS"),
    (work, "_COUNTS_SECONDS"),
    (marking, "SHARE_SECONDS"),
    (housekeeping, "_SECONDS"),
    (housekeeping, "_QUERY_SECONDS"),
)


@pytest.fixture(autouse=True)
def patient_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn of retention does all that is to do, however busy the machine is."""
    for module, name in _SHARES:
        monkeypatch.setattr(module, name, 300)


@pytest.fixture
def settings(database: str, minio_server: S3, bucket: str) -> RetentionSettings:
    return RetentionSettings.model_validate(
        {
            "postgres_dsn": database,
            **minio_server.settings,
            "s3_bucket": bucket,
            "retention_batch_inferences": 10,
        }
    )


@pytest.fixture
def environment(settings: RetentionSettings) -> dict[str, str]:
    """The environment of a real retention process on this test's servers."""
    return environment_of(settings)


@pytest.fixture
def blobs(settings: RetentionSettings) -> Iterator[Blobs]:
    with Blobs(settings) as opened:
        yield opened


@pytest.fixture
def storing(engine: AsyncEngine, blobs: Blobs, settings: RetentionSettings) -> Storing:
    return Storing(engine, blobs, settings)


@pytest.fixture
def stranger(engine: AsyncEngine, settings: RetentionSettings, tmp_path: Path) -> Stranger:
    return Stranger(engine, settings, tmp_path)


@pytest.fixture
def eraser(storing: Storing) -> Eraser:
    return storing.eraser


@pytest.fixture
def marker(engine: AsyncEngine, blobs: Blobs) -> Marker:
    ledger = Ledger(engine, blobs, prefix="ledger/")
    quarantine = QuarantineEraser(engine, blobs, ledger, NoPace())
    return Marker(engine, ledger, quarantine, NoPace(), batch=7)
