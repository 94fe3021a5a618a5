"""A running ingester caches the integer of a label. The label is deleted with the last
inference that has it, and created again with the next one."""

from typing import Any

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.erasure.progress.erasure import list_unfinished
from inference_store.index.accounting import Outcome
from inference_store.index.tables import inference, label, prediction
from inference_store.objects import Blobs
from inference_store.platform.settings import RetentionSettings
from inference_store.retention.eraser import Eraser
from tests.e2e.faults.books_close import counted
from tests.integration import erasure_requests
from tests.integration.ingester.conftest import RunningIngester
from tests.integration.retention.conftest import NoPace
from tests.polling import until
from tests.producer import Capture, capture
from tests.servers.minio import S3


def make_capture(number: int, *names: str) -> Capture:
    return capture(number, predictions=[{"label": name, "score": 0.5} for name in names])


async def read_labels(engine: AsyncEngine) -> dict[str, int]:
    async with engine.connect() as connection:
        rows = await connection.execute(select(label.c.name, label.c.label))
        return {row.name: row.label for row in rows}


async def test_deleted_label_is_created_again(
    running: RunningIngester, engine: AsyncEngine, database: str, minio_server: S3, bucket: str
) -> None:
    _, producer = running
    await producer.produce(make_capture(1, "face", "cat"))
    await until(lambda: counted(engine), lambda counts: counts[Outcome.STORED] == 1)
    first = await read_labels(engine)
    settings: dict[str, Any] = {
        "postgres_dsn": database,
        "s3_endpoint": minio_server.endpoint,
        "s3_access_key": minio_server.access_key,
        "s3_secret_key": minio_server.secret_key,
        "s3_bucket": bucket,
    }
    async with engine.begin() as connection:
        row = (await connection.execute(select(inference.c.model, inference.c.uid))).one()
        erasure = await erasure_requests.request_erasure(
            connection, model=row.model, uids=[row.uid]
        )
    with Blobs(RetentionSettings.model_validate(settings)) as blobs:
        assert await Eraser(engine, blobs, NoPace(), batch=10).finish(erasure) == "deleted"
    async with engine.connect() as connection:
        assert (await list_unfinished(connection, failed=False)) == []
    assert await read_labels(engine) == {}
    await producer.produce(make_capture(2, "face"), make_capture(3, "cat"))
    await until(lambda: counted(engine), lambda counts: counts[Outcome.STORED] == 3)
    second = await read_labels(engine)
    assert second.keys() == {"face", "cat"}
    assert set(second.values()).isdisjoint(first.values())
    async with engine.connect() as connection:
        query = select(func.count()).join(label, label.c.label == prediction.c.label)
        assert await connection.scalar(query.select_from(prediction)) == 2
