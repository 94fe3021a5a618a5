"""An input or a response that was erased does not come back with a redelivery of its event."""

from collections import Counter
from dataclasses import dataclass, field
from datetime import timedelta
from uuid import UUID, uuid4

from sqlalchemy import func, select, update
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.erasure import erasures
from inference_store.index.accounting import Outcome
from inference_store.index.tables import erasing, erasure, inference
from inference_store.inference.events import StorageKey
from inference_store.inference.layout import Kind, key_of
from inference_store.objects import Blobs
from inference_store.platform.settings import RetentionSettings
from inference_store.retention.eraser import Eraser
from tests.e2e.faults.books_close import counted
from tests.integration.ingester.conftest import RunningIngester
from tests.integration.retention.conftest import NoPace
from tests.polling import until
from tests.producer import START, Capture, capture
from tests.servers.minio import S3

NONE = (None, None, None)


async def test_what_was_erased_and_is_written_again_is_deleted_again(
    running: RunningIngester, engine: AsyncEngine, database: str, minio_server: S3, bucket: str
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
        kinds: list[Kind] = ["data", "response", "metadata"]
        left = blobs.still_there([StorageKey(bucket, c.key(k)) for c in everything for k in kinds])
    gone = {without_input.key("data"), without_response.key("response")}
    assert {key.key for key in left} == {c.key(k) for c in everything for k in kinds} - gone
    async with engine.connect() as connection:
        assert await connection.scalar(select(func.count()).select_from(inference)) == 3


@dataclass(frozen=True, slots=True)
class Own(Capture):
    """One of our own producers: its keys are of no other, so its events do not wait for marks."""

    id: UUID = field(default_factory=uuid4)

    def key(self, kind: Kind) -> str:
        at = START + timedelta(milliseconds=self.number)
        return key_of("captures", self.model_id, at, self.id, kind)


def own(number: int) -> Own:
    id = uuid4()
    return Own(number, extras={"capture_id": str(id)}, id=id)


async def test_what_is_written_again_while_it_is_being_deleted_is_deleted_once_more(
    running: RunningIngester, engine: AsyncEngine
) -> None:
    """Its row does not say yet that it is gone. What is only marked is deleted after it came."""
    _, producer = running
    claimed, marked = own(1), own(2)
    await producer.produce(claimed, marked)
    await until(lambda: counted(engine), lambda found: found[Outcome.STORED] == 2)
    async with engine.begin() as connection:
        rows = (await connection.execute(select(inference))).all()
        arrivals = [(row.model, row.uid, "input", row.data_storage_key, *NONE) for row in rows]
        await erasures.enqueue_arrivals(connection, arrivals, cause="policy")
        here = erasing.c.data_storage_key.like(f"%{claimed.key('data')}")
        await connection.execute(update(erasing).where(here).values(claimed_at=func.now()))
    await producer.produce(claimed, marked)
    await until(lambda: counted(engine), lambda found: found.total() == 4)
    query = select(erasing.c.scope, erasing.c.data_storage_key)
    query = query.join(erasure, erasure.c.id == erasing.c.erasure)
    async with engine.connect() as connection:
        again = (await connection.execute(query.where(erasure.c.cause == "erased_again"))).all()
    assert [(row.scope, row.data_storage_key.endswith(claimed.key("data"))) for row in again] == [
        ("input", True)
    ]
