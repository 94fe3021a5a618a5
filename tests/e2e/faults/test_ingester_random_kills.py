"""20 times kill -9 of the ingester at a random moment, while events keep coming."""

import asyncio
import random
from pathlib import Path

import pytest

from tests.e2e.faults.traffic import Published, make_captures
from tests.servers.fixtures import unique
from tests.service_process import Service
from tests.warm.process import COLD

KILLS = 20


@pytest.mark.parametrize(("seed", "cold"), [(1, "1"), (2, "0")])
async def test_killed_at_random_moments(
    seed: int, cold: str, environment: dict[str, str], published: Published, tmp_path: Path
) -> None:
    moments = random.Random(seed)
    coming = make_captures(range(10_000 * seed, 10_000 * seed + 1500))
    service = Service("ingester", environment | {COLD: cold}, tmp_path)
    try:
        load = asyncio.create_task(published.under_load(coming, pause=0.6))
        for _ in range(KILLS // 2):
            await asyncio.to_thread(service.wait_ready)
            await published.wait_for_more(moments.randint(0, 150), load)
            await asyncio.to_thread(service.kill)
            # A new group: in the old one the dead member would be waited for.
            service.restart(KAFKA_GROUP=unique("group"))
        await load
        await published.check_ingested()
    finally:
        service.stop()
