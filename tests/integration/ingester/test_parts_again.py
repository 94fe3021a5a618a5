"""An input or a response that was erased does not come back with a redelivery of its event."""

from collections import Counter

from sqlalchemy import func, select, update
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.retention.eraser import Eraser
from inference_store.store.blobs import Blobs
from inference_store.store.books import Outcome
from inference_store.store.events import StorageKey
from inference_store.store.retention import erasures
from inference_store.store.settings import RetentionSettings
from inference_store.store.tables import inference
from tests.e2e.faults.books_close import counted
from tests.integration.ingester.conftest import Line
from tests.integration.retention.conftest import NoPace
from tests.polling import until
from tests.producer import capture
from tests.servers.minio import S3


async def test_what_was_erased_and_is_written_again_is_deleted_again(
    running: Line, engine: AsyncEngine, database: str, minio_server: S3, bucket: str
) -> None:
    _, producer = running
    without_input, without_response, whole = (capture(number) for number in (1, 2, 3))
    everything = (without_input, without_response, whole)
    await producer.produce(*everything)
    await until(lambda: counted(engine), lambda found: found[Outcome.STORED] == 3)
    async with engine.begin() as connection:
        for each, column in (
            (without_input, "data_deleted_at"),
            (without_response, "response_deleted_at"),
        ):
            here = inference.c.data_storage_key.like(f"%{each.key('data')}")
            await connection.execute(update(inference).where(here).values({column: func.now()}))
    # all three objects are written anew, and then the event
    await producer.produce(*everything)
    await until(lambda: counted(engine), lambda found: found.total() == 6)
    assert +(await counted(engine)) == Counter({Outcome.STORED: 3, Outcome.DUPLICATE: 3})
    async with engine.connect() as connection:
        queued = await erasures.unfinished(connection, failed=False)
    assert sorted((one.cause, one.scope, one.marked) for one in queued) == [
        ("erased_again", "input", 1),
        ("erased_again", "response", 1),
    ]
    environment = {"postgres_dsn": database, "s3_endpoint": minio_server.endpoint}
    environment |= {"s3_access_key": minio_server.access_key, "s3_bucket": bucket}
    environment |= {"s3_secret_key": minio_server.secret_key}
    with Blobs(RetentionSettings.model_validate(environment)) as blobs:
        for one in queued:
            assert await Eraser(engine, blobs, NoPace(), batch=10).finish(one) == "deleted"
        kinds = ("data", "response", "metadata")
        left = blobs.still_there([StorageKey(bucket, c.key(k)) for c in everything for k in kinds])
    gone = {without_input.key("data"), without_response.key("response")}
    assert {key.key for key in left} == {c.key(k) for c in everything for k in kinds} - gone
    async with engine.connect() as connection:
        assert await connection.scalar(select(func.count()).select_from(inference)) == 3
