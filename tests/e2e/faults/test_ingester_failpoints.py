"""kill -9 of the ingester before and after every effect it has on the world."""

import asyncio
import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.index import registrations, unsettled
from inference_store.index.accounting import Outcome
from inference_store.index.registrations import Details
from inference_store.index.tables import inference
from inference_store.index.unsettled import Selection
from inference_store.platform.failpoints import FAILPOINTS
from tests.e2e.faults.traffic import Published, counted, make_captures
from tests.kill_chain import KillChain, chain_kills
from tests.polling import until
from tests.producer import Capture
from tests.servers.fixtures import unique
from tests.servers.minio import S3
from tests.servers.plugin import faults
from tests.service_process import Service
from tests.transactions import fetch, transact
from tests.warm.process import COLD

_FIRST_OR_LATER = ("1", faults("2"))
# The first ones need a database in which partitions are missing.
INGESTER_FAILPOINTS = [
    *(name for name in FAILPOINTS if name.startswith("partitions.create")),
    *(name for name in FAILPOINTS if name.startswith("ingester.")),
]
RETRY_FAILPOINTS = [name for name in INGESTER_FAILPOINTS if name.startswith("ingester.retry")]
# Names that a parked event or a redriven dead letter passes as well.
REDRIVE_FAILPOINTS = [*RETRY_FAILPOINTS, "ingester.write.children", "ingester.sidecar.after"]
# How many events each kill meets, and how many whose blobs come late.
_FEW, _LATE = 12, 5


@pytest.fixture
def service(
    environment: dict[str, str], shared_bucket: str, minio_server: S3, tmp_path: Path
) -> Iterator[Service]:
    """Start an ingester that writes sidecars, and delete them: the bucket is the module's."""
    environment["INFERENCE_STORE_INGESTER_SIDECARS"] = "on"
    with Service("ingester", environment, tmp_path) as service:
        yield service
    for listed in minio_server.client().list_objects(shared_bucket, "sidecars/", recursive=True):
        minio_server.client().remove_object(shared_bucket, str(listed.object_name))


def start_again(service: Service, failpoint: str | None) -> None:
    """Start it in a new group: the dead member would be waited for."""
    service.restart(FAILPOINT=failpoint, KAFKA_GROUP=unique("group"))


async def check_everything(published: Published, s3: S3) -> None:
    """Check that every event is stored once, and has its sidecar, and that there is no other."""
    await published.check_ingested(sidecars=True)
    bucket = published.bucket
    keys = set(await fetch(published.engine, select(inference.c.sidecar_storage_key)))
    listed = s3.client().list_objects(bucket, prefix="sidecars/", recursive=True)
    assert {f"s3://{bucket}/{listed_object.object_name}" for listed_object in listed} == keys


@pytest.mark.kills
@pytest.mark.parametrize("nth", _FIRST_OR_LATER)
@chain_kills(INGESTER_FAILPOINTS)
async def test_killed_at(
    kills: KillChain,
    nth: str,
    service: Service,
    published: Published,
    many: list[Capture],
    engine: AsyncEngine,
    minio_server: S3,
) -> None:
    service.kill()
    rest = list(many)

    async def count_parked() -> int:
        return len(await transact(engine, unsettled.find, Selection(state="parked"), limit=1000))

    async def park(count: int) -> None:
        """Publish events whose responses come once they are parked."""
        late = make_captures(range(1000, 1000 + count), prefix=unique("late"))
        await published.producer.put_all(late, "data", "metadata")
        await published.publish(late)
        # A slow machine retries, and is killed, before the last of them is parked.
        await until(count_parked, lambda parked: parked >= count or not service.process.running)
        await published.producer.put_all(late, "response")

    async def pass_again(failpoint: str, some: list[Capture]) -> bool:
        """Give it more to do: one poll, or one retry, may have taken all that there was."""
        await (park(1) if failpoint in RETRY_FAILPOINTS else published.publish(some))
        return service.process.running

    for failpoint in kills:
        some, rest = rest[:_FEW], rest[_FEW:]
        await published.publish(some, again=3)
        start_again(service, f"{failpoint}:{nth}")
        if failpoint in RETRY_FAILPOINTS:
            await park(_LATE)
        if nth != "1":
            again = partial(pass_again, failpoint, some[:1])
            await until(again, lambda running: not running, seconds=600)
        await kills.wait_until_killed(service)
    await published.publish(rest, again=len(rest) // 5)
    start_again(service, None)
    await check_everything(published, minio_server)


@pytest.mark.kills
@pytest.mark.parametrize("nth", _FIRST_OR_LATER)
@chain_kills(REDRIVE_FAILPOINTS)
async def test_killed_while_redriving_dead_letters(
    kills: KillChain, nth: str, service: Service, published: Published, minio_server: S3
) -> None:
    """The events of a model for each kill, all of which are unknown at first.

    For a later kill there are more models: one retry may take all that is redriven by then.
    """
    service.kill()
    models = {
        failpoint: [f"model-{turn}-{number}" for number in range(int(nth))]
        for turn, failpoint in enumerate(kills.failpoints)
    }
    for model_id in (model_id for several in models.values() for model_id in several):
        some = make_captures(range(_FEW), model_id=model_id)
        await published.producer.put_all(some)
        await published.publish(some, again=3)
    service.restart(INGESTER_UNKNOWN_MODELS="refuse")
    await until(
        lambda: counted(published.engine), lambda result: result[Outcome.DEAD] == published.records
    )
    service.kill()

    async def redrive(model_id: str) -> None:
        async with published.engine.begin() as connection:
            await registrations.put(connection, model_id, Details())
            selection = Selection(model_id=model_id)
            assert await unsettled.retry(connection, selection) == _FEW + 3

    async def is_taken() -> bool:
        selection = Selection(state="redrive")
        left = await transact(published.engine, unsettled.find, selection, limit=1)
        return not left or not service.process.running

    for failpoint, (first, *others) in zip(kills, models.values(), strict=True):
        await redrive(first)
        start_again(service, f"{failpoint}:{nth}")
        for model_id in others:
            await until(is_taken, bool)
            await redrive(model_id)
        await kills.wait_until_killed(service)
    start_again(service, None)
    await until(lambda: counted(published.engine), lambda result: not result[Outcome.DEAD])
    await check_everything(published, minio_server)


# 20 times kill -9 of the ingester at a random moment, while events keep coming.

KILLS = 20


@pytest.mark.parametrize(("seed", "cold"), [(1, "1"), (2, "0")])
async def test_killed_at_random_moments(
    seed: int, cold: str, environment: dict[str, str], published: Published, tmp_path: Path
) -> None:
    moments = random.Random(seed)
    coming = make_captures(range(10_000 * seed, 10_000 * seed + 1500))
    with Service("ingester", environment | {COLD: cold}, tmp_path) as service:
        load = asyncio.create_task(published.under_load(coming, pause=0.6))
        for _ in range(KILLS // 2):
            await asyncio.to_thread(service.wait_ready)
            await published.wait_for_more(moments.randint(0, 150), load)
            await asyncio.to_thread(service.kill)
            # A new group: in the old one the dead member would be waited for.
            service.restart(KAFKA_GROUP=unique("group"))
        await load
        await published.check_ingested()
