"""20 times kill -9 of retention at a random moment, while events keep coming and expiring."""

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from tests.e2e.faults.books_close import counted, drained
from tests.e2e.faults.expiring import check_in_the_end, quick_retention, received, set_policies
from tests.e2e.faults.traffic import Published
from tests.polling import until
from tests.servers.minio import S3
from tests.service_process import Service

KILLS = 20


async def kill_often(services: Sequence[Service], moments: random.Random) -> None:
    """Kill and start again, each time another one."""
    for turn in range(KILLS):
        service = services[turn % len(services)]
        await asyncio.to_thread(lambda service=service: service.admin)
        await asyncio.sleep(moments.uniform(0.0, 1.0))
        await asyncio.to_thread(service.kill)
        service.restart()


@pytest.mark.parametrize("replicas", [1, 2])
async def test_killed_at_random_moments(
    replicas: int,
    environment: dict[str, str],
    published: Published,
    engine: AsyncEngine,
    minio_server: S3,
    bucket: str,
    tmp_path: Path,
) -> None:
    environment = quick_retention(environment, bucket)
    published.producer = published.producer.of_bucket(bucket)
    stored, coming = received(range(450)), received(range(450, 1050))
    ingester = Service("ingester", environment, tmp_path)
    retention: list[Service] = []
    try:
        await published.under_load(stored, chunk=150)
        await until(lambda: counted(engine), lambda found: found.total() == published.records)
        await set_policies(engine)
        for number in range(replicas):
            (tmp_path / str(number)).mkdir()
            retention.append(Service("retention", environment, tmp_path / str(number)))
        load = asyncio.create_task(published.under_load(coming, chunk=30, pause=1.5))
        await kill_often(retention, random.Random(replicas))
        await load
        # Late redeliveries of everything do not bring back what was erased.
        await published.publish(stored)
        await drained(engine, records=published.records)
        await check_in_the_end(engine, [*stored, *coming], minio_server, bucket)
    finally:
        for service in (ingester, *retention):
            service.stop()
