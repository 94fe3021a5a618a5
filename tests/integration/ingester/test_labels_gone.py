"""A running ingester knows a label's integer; the label goes with what was erased, and comes anew
with the next inference that has it."""

from typing import Any

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.erasure import erasures
from inference_store.index.accounting import Outcome
from inference_store.index.tables import inference, label, prediction
from inference_store.objects import Blobs
from inference_store.platform.settings import RetentionSettings
from inference_store.retention.eraser import Eraser
from tests.e2e.faults.books_close import counted
from tests.integration import by_uids
from tests.integration.ingester.conftest import RunningIngester
from tests.integration.retention.conftest import NoPace
from tests.polling import until
from tests.producer import Capture, capture
from tests.servers.minio import S3


def with_label(number: int, *names: str) -> Capture:
    return capture(number, predictions=[{"label": name, "score": 0.5} for name in names])


async def labels(engine: AsyncEngine) -> dict[str, int]:
    async with engine.connect() as connection:
        rows = await connection.execute(select(label.c.name, label.c.label))
        return {row.name: row.label for row in rows}


async def test_a_label_that_is_gone_comes_anew(
    running: RunningIngester, engine: AsyncEngine, database: str, minio_server: S3, bucket: str
) -> None:
    _, producer = running
    await producer.produce(with_label(1, "face", "cat"))
    await until(lambda: counted(engine), lambda found: found[Outcome.STORED] == 1)
    first = await labels(engine)
    settings: dict[str, Any] = {
        "postgres_dsn": database,
        "s3_endpoint": minio_server.endpoint,
        "s3_access_key": minio_server.access_key,
        "s3_secret_key": minio_server.secret_key,
        "s3_bucket": bucket,
    }
    async with engine.begin() as connection:
        row = (await connection.execute(select(inference.c.model, inference.c.uid))).one()
        one = await by_uids.request(connection, model=row.model, uids=[row.uid])
    with Blobs(RetentionSettings.model_validate(settings)) as blobs:
        assert await Eraser(engine, blobs, NoPace(), batch=10).finish(one) == "deleted"
    async with engine.connect() as connection:
        assert (await erasures.unfinished(connection, failed=False)) == []
    assert await labels(engine) == {}
    await producer.produce(with_label(2, "face"), with_label(3, "cat"))
    await until(lambda: counted(engine), lambda found: found[Outcome.STORED] == 3)
    second = await labels(engine)
    assert second.keys() == {"face", "cat"}
    assert set(second.values()).isdisjoint(first.values())
    async with engine.connect() as connection:
        named = select(func.count()).join(label, label.c.label == prediction.c.label)
        assert await connection.scalar(named.select_from(prediction)) == 2
