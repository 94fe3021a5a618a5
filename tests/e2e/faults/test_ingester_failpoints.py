"""kill -9 of the ingester before and after every effect it has on the world."""

import asyncio
from pathlib import Path

import pytest
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.index import dead_letters, parked, registrations
from inference_store.index.accounting import Outcome
from inference_store.index.registrations import Details
from inference_store.index.tables import inference
from inference_store.platform.failpoints import FAILPOINTS
from tests.e2e.faults.books_close import check_ingested, counted
from tests.e2e.faults.traffic import Published, make_captures
from tests.polling import until
from tests.producer import Capture
from tests.servers.fixtures import unique
from tests.servers.minio import S3
from tests.servers.plugin import faults
from tests.service_process import Service

_SIGKILL = 137
_FIRST_OR_LATER = ("1", faults("2"))
INGESTER_FAILPOINTS = [
    name for name in FAILPOINTS if name.startswith(("ingester.", "partitions.create"))
]
RETRY_FAILPOINTS = [name for name in INGESTER_FAILPOINTS if name.startswith("ingester.retry")]
# Names that a parked event or a redriven dead letter passes as well.
REDRIVE_FAILPOINTS = [*RETRY_FAILPOINTS, "ingester.write.children", "ingester.sidecar.after"]


async def wait_until_killed(service: Service) -> None:
    """Wait until the failpoint has killed it."""
    code = await asyncio.to_thread(service.process.wait, 300)
    assert code == _SIGKILL, service.text[-4000:]


def enable_sidecars(failpoint: str, environment: dict[str, str]) -> bool:
    """Turn sidecars on if the failpoint is about them. Return whether it is."""
    if ".sidecar." not in failpoint:
        return False
    environment["INFERENCE_STORE_INGESTER_SIDECARS"] = "on"
    return True


async def check_sidecars(engine: AsyncEngine, s3: S3, bucket: str) -> None:
    """Every stored inference has its sidecar, and there is no other."""
    async with engine.connect() as connection:
        keys = set((await connection.execute(select(inference.c.sidecar_storage_key))).scalars())
    listed = s3.client().list_objects(bucket, prefix="sidecars/", recursive=True)
    assert {f"s3://{bucket}/{listed_object.object_name}" for listed_object in listed} == keys


def forget_sidecars(s3: S3, bucket: str) -> None:
    """The bucket is the module's, and its captures are those of every test."""
    for listed_object in s3.client().list_objects(bucket, prefix="sidecars/", recursive=True):
        s3.client().remove_object(bucket, str(listed_object.object_name))


def start_again(service: Service) -> None:
    """Start it without the failpoint. In a new group: the dead member would be waited for."""
    service.restart(FAILPOINT=None, KAFKA_GROUP=unique("group"))


@pytest.mark.kills
@pytest.mark.parametrize("nth", _FIRST_OR_LATER)
@pytest.mark.parametrize("failpoint", INGESTER_FAILPOINTS)
async def test_killed_at(
    failpoint: str,
    nth: str,
    environment: dict[str, str],
    published: Published,
    many: list[Capture],
    engine: AsyncEngine,
    shared_bucket: str,
    minio_server: S3,
    tmp_path: Path,
) -> None:
    environment["INFERENCE_STORE_FAILPOINT"] = f"{failpoint}:{nth}"
    sidecars = enable_sidecars(failpoint, environment)
    late = make_captures(range(5), prefix=unique("late"))
    await published.producer.put_all(late, "data", "metadata")
    await published.publish(late)
    await published.publish(many, again=60)
    service = Service("ingester", environment, tmp_path)
    try:
        if failpoint in RETRY_FAILPOINTS:
            # A slow machine retries, and is killed, before the last of them is parked.
            await until(
                lambda: _count_parked(engine),
                lambda waiting: waiting == len(late) or not service.process.running,
            )
        await published.producer.put_all(late, "response")
        await wait_until_killed(service)
        start_again(service)
        records = published.records
        await check_ingested(
            engine, published.captures, shared_bucket, records=records, sidecars=sidecars
        )
        if sidecars:
            await check_sidecars(engine, minio_server, shared_bucket)
    finally:
        service.stop()
        forget_sidecars(minio_server, shared_bucket)


async def _count_parked(engine: AsyncEngine) -> int:
    async with engine.connect() as connection:
        return await parked.waiting(connection)


@pytest.mark.kills
@pytest.mark.parametrize("nth", _FIRST_OR_LATER)
@pytest.mark.parametrize("failpoint", REDRIVE_FAILPOINTS)
async def test_killed_while_redriving_dead_letters(
    failpoint: str,
    nth: str,
    environment: dict[str, str],
    published: Published,
    many: list[Capture],
    engine: AsyncEngine,
    shared_bucket: str,
    minio_server: S3,
    tmp_path: Path,
) -> None:
    sidecars = enable_sidecars(failpoint, environment)
    await published.publish(many[:12], again=3)
    environment["INFERENCE_STORE_INGESTER_UNKNOWN_MODELS"] = "refuse"
    service = Service("ingester", environment, tmp_path)
    try:
        await until(lambda: counted(engine), lambda result: result[Outcome.DEAD] == 15)
        service.kill()
        async with engine.begin() as connection:
            await registrations.put(connection, many[0].model_id, Details())
            assert await dead_letters.redrive(connection, dead_letters.Selection()) == 15
        service.restart(FAILPOINT=f"{failpoint}:{nth}", KAFKA_GROUP=unique("group"))
        await wait_until_killed(service)
        start_again(service)
        await until(lambda: counted(engine), lambda result: not result[Outcome.DEAD])
        records = published.records
        await check_ingested(
            engine, published.captures, shared_bucket, records=records, sidecars=sidecars
        )
        if sidecars:
            await check_sidecars(engine, minio_server, shared_bucket)
    finally:
        service.stop()
        forget_sidecars(minio_server, shared_bucket)
