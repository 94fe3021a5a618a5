from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.erasure.progress import Erasure
from inference_store.objects import Blobs
from inference_store.platform.settings import RetentionSettings
from inference_store.retention import eraser as erasing
from inference_store.retention import exporter, housekeeping, run
from inference_store.retention.eraser import MarkResult
from tests.integration.backups import backup, restore
from tests.servers.minio import S3

from .stored import Eraser, NoPace, Storing, environment_of, make_leader
from .stranger import Stranger

__all__ = ["NoPace", "backup", "restore"]
Mark = Callable[[Erasure], Awaitable[MarkResult]]
_SHARES = (
    (run, "_SHARE_SECONDS"),
    (run, "_ERASURES_SECONDS"),
    (run, "_COUNTS_SECONDS"),
    (exporter, "SHARE_SECONDS"),
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
def mark(engine: AsyncEngine, blobs: Blobs, monkeypatch: pytest.MonkeyPatch) -> Mark:
    """Mark an erasure, seven inferences at a time."""
    monkeypatch.setattr(erasing, "_MARKED", 7)
    return partial(erasing.mark, make_leader(engine, blobs))
