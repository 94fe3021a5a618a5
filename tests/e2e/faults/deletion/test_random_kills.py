"""50 times kill -9 of one of two retention services at a random moment, while events come, erased
ones come again with their blobs, holds are placed and released, and policies change."""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from functools import partial
from pathlib import Path

import httpx
import pytest
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.erasure.log import new_key
from inference_store.index.accounting import Outcome
from inference_store.index.tables import inference
from inference_store.platform.settings import RetentionSettings
from tests.e2e.faults.traffic import (
    Published,
    check_nothing_waits,
    check_partitions,
    check_rows,
    counted,
    uid_of,
    wait_until_drained,
)
from tests.polling import until
from tests.producer import Capture
from tests.servers.fixtures import unique
from tests.servers.minio import S3
from tests.servers.ports import free_port
from tests.service_process import Service
from tests.settings import read_settings
from tests.transactions import fetch, transact
from tests.warm.process import COLD, run_command

from . import world

pytestmark = pytest.mark.real_minio
KILLS = 50
SEED = 7
KEY = new_key()
_LATE = ("expires", "loses-inputs", "kept")


@pytest.fixture
def locking_bucket(minio_server: S3) -> str:
    return minio_server.create_bucket(unique(), object_lock=True)


@pytest.fixture
def living(environment: dict[str, str], locking_bucket: str) -> dict[str, str]:
    """The environment of all services."""
    changes = {
        "S3_BUCKET": locking_bucket,
        "RETENTION_INTERVAL_SECONDS": "1",
        "RETENTION_BATCH_INFERENCES": "7",
        "CERTIFICATE_KEY": KEY.pem,
        "CERTIFICATE_HEAD_LOCK_DAYS": "1",
        "API_PORT": str(free_port()),
    }
    return environment | {f"INFERENCE_STORE_{name}": value for name, value in changes.items()}


@pytest.fixture
async def asking(living: dict[str, str]) -> AsyncIterator[world.Asking]:
    address = f"http://127.0.0.1:{living['INFERENCE_STORE_API_PORT']}"
    async with httpx.AsyncClient(base_url=address) as client:
        yield world.Asking(client)


async def kill_often(services: Sequence[Service], moments: random.Random) -> None:
    for turn in range(KILLS):
        service = services[turn % len(services)]
        await asyncio.to_thread(getattr, service, "admin")
        await asyncio.sleep(moments.uniform(0.0, 1.0))
        await asyncio.to_thread(service.kill)
        service.restart()


async def redeliver(published: Published, some: Sequence[Capture], over: asyncio.Event) -> None:
    """Publish events again, with their blobs, as a spool brings them."""
    start = 0
    while not over.is_set():
        await published.under_load(some[start : start + 20], chunk=20, pause=2.0)
        start = (start + 20) % len(some)


@pytest.mark.timeout(1800)
async def test_killed_at_random_moments(
    living: dict[str, str],
    asking: world.Asking,
    published: Published,
    engine: AsyncEngine,
    minio_server: S3,
    locking_bucket: str,
    tmp_path: Path,
) -> None:
    print(f"seed {SEED}")
    published.producer = published.producer.use_bucket(locking_bucket)
    stored, coming = world.make_captures(range(300)), world.make_captures(range(300, 600), _LATE)
    services = [Service("ingester", living, tmp_path), Service("api", living, tmp_path)]
    try:
        await published.under_load(stored, chunk=150)
        await until(lambda: counted(engine), lambda result: result.total() == published.records)
        waiting = await set_aside(published)
        # what begins to wait after the erasure would wait on
        await until(lambda: counted(engine), lambda result: result[Outcome.PARKED] == waiting)
        await asking.begin(stored)
        await asyncio.to_thread(services[1].wait_ready)
        for number in range(2):
            (tmp_path / str(number)).mkdir()
            # One starts as a user's does, and one is forked from a warm process.
            environment = living | {COLD: str(number)}
            services.append(Service("retention", environment, tmp_path / str(number)))
        over = asyncio.Event()
        tasks = [
            asyncio.create_task(published.under_load(coming, chunk=15, pause=4.0)),
            asyncio.create_task(redeliver(published, stored, over)),
            asyncio.create_task(asking.act(pause=5.0)),
        ]
        await kill_often(services[2:], random.Random(SEED))
        over.set()
        await asyncio.gather(*tasks)
        await published.under_load(stored, chunk=150)
        await wait_until_drained(engine, records=published.records)
        await wait_until_settled(engine, [*stored, *coming], locking_bucket)
        await check_deletions(
            engine, [*stored, *coming], minio_server, locking_bucket, living, asking
        )
    finally:
        for service in services:
            print(service.text[-3000:])
            service.stop()


ASIDE = 9_000


async def set_aside(published: Published) -> int:
    """Publish events of the subject without their responses: they wait, and are erased there.
    Return how many."""
    numbers = [
        n for n in range(ASIDE, ASIDE + 30) if n % 3 == 1 and world.MODELS[n % 5] == "subjects"
    ]
    some = [capture for n in numbers for capture in world.make_captures(range(n, n + 1))]
    assert {world.find_camera(capture) for capture in some} == {world.SUBJECT}
    await published.producer.put_all(some, "data", "metadata")
    await published.producer.publish_all(capture.event for capture in some)
    published.records += len(some)
    return len(some)


async def wait_until_settled(engine: AsyncEngine, captures: Sequence[Capture], bucket: str) -> None:
    expected = {uid_of(capture, bucket) for capture in captures if world.survives(capture)}
    without = {
        uid_of(capture, bucket)
        for capture in captures
        if world.survives(capture) and world.is_input_gone(capture)
    }

    async def count_differences() -> tuple[int, int]:
        there = set(await fetch(engine, select(inference.c.uid)))
        query = select(inference.c.uid).where(inference.c.data_deleted_at.is_not(None))
        gone = set(await fetch(engine, query))
        return len(there ^ expected), len(gone ^ without)

    await until(count_differences, lambda result: result == (0, 0), seconds=300)
    await world.wait_until_at_rest(engine)


async def check_deletions(
    engine: AsyncEngine,
    captures: Sequence[Capture],
    s3: S3,
    bucket: str,
    environment: dict[str, str],
    asking: world.Asking,
) -> None:
    """Check that held and kept inferences are whole, erased ones nowhere, and certificates true."""
    survivors = [capture for capture in captures if world.survives(capture)]
    inputs = {uid_of(survivor, bucket) for survivor in survivors if world.is_input_gone(survivor)}
    uids = {uid_of(survivor, bucket) for survivor in survivors}
    result = await counted(engine)
    assert (result[Outcome.DEAD], result[Outcome.PARKED], result[Outcome.LOST]) == (0, 0, 0)
    await transact(engine, check_nothing_waits)
    await transact(engine, check_partitions)
    await transact(engine, check_rows, uids, without_input=inputs)
    expected_keys = {key for survivor in survivors for key in survivor.blobs}
    expected_keys -= {
        survivor.key("data") for survivor in survivors if world.is_input_gone(survivor)
    }
    world.check_versions(s3, bucket, expected_keys)
    gone = {uid_of(capture, bucket) for capture in captures} - uids
    settings = read_settings(RetentionSettings, environment)
    await world.check_proofs(engine, settings, KEY, gone, remaining=uids)
    verify = partial(run_command, "certificates", "verify", "--objects", "--head", seconds=600)
    verified = await asyncio.to_thread(verify, environment=environment)
    assert verified.returncode == 0, verified.stdout + verified.stderr
    for erasure in asking.erasures:
        status = await asking.call_api("GET", f"/v1/erasures/{erasure}")
        assert status["state"] in {"certified", "partly_held"}
        assert status["inferences"] > 0
