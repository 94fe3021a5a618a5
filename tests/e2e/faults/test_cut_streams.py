"""A stream of 100,000 inferences whose connections break at 200 random bytes: the same each time,
by the client that blocks and by that of an event loop."""

import asyncio
from collections.abc import Iterator
from contextlib import aclosing
from itertools import chain, pairwise, repeat
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.index import partitions, registrations
from inference_store_client import Retries
from tests.both_clients import CLIENTS, Client
from tests.integration.client.cutting_proxy import CuttingProxy, cutting_proxy
from tests.integration.stored_inferences import START, at
from tests.servers.environment import service_environment
from tests.servers.kafka import Kafka
from tests.servers.minio import S3
from tests.servers.ports import free_port
from tests.service_process import Service

COUNT, CUTS = 100_000, 200
SEED = 5
_PATIENT = Retries(attempts=1000, first_wait_seconds=0.001, longest_wait_seconds=0.05)
# A uid begins with the milliseconds of its time, as the store's own do.
_FILL = """
INSERT INTO inference (model, uid, inference_id, received_at)
SELECT :model,
    (lpad(to_hex((extract(epoch FROM received_at) * 1000)::bigint), 12, '0')
        || '8' || substr(md5(n::text), 1, 3) || '8' || substr(md5(n::text), 4, 15))::uuid,
    'id-' || n, received_at
FROM generate_series(0, :count - 1) AS n,
    LATERAL (SELECT CAST(:start AS timestamptz) + n * interval '10 milliseconds' AS received_at) t
"""
Read = list[tuple[str, str]]


@pytest.fixture
async def expected(engine: AsyncEngine) -> Read:
    """Store so many inferences; return the uid and the id of each, the newest first."""
    last = at(COUNT / 100)
    await partitions.make_missing(engine, [START, last], target=5_000_000)
    async with engine.begin() as connection:
        registration, _ = await registrations.put(connection, "model", registrations.Details())
        values = {"model": registration.model, "count": COUNT, "start": START}
        await connection.execute(text(_FILL), values)
    async with engine.connect() as connection:
        query = text("SELECT uid, inference_id FROM inference ORDER BY uid DESC")
        return [(str(UUID(str(row[0]))), row[1]) for row in await connection.execute(query)]


@pytest.fixture
def api(database: str, minio_server: S3, bucket: str, tmp_path: Path) -> Iterator[str]:
    """The address of an api in a process of its own."""
    port = str(free_port())
    changes = {"API_PORT": port, "API_RATE_LIMIT_PER_MINUTE": "0"}
    nobody = Kafka("127.0.0.1:1")
    environment = service_environment(database, nobody, minio_server, bucket, **changes)
    service = Service("api", environment, tmp_path)
    try:
        service.wait_ready()
        yield f"http://127.0.0.1:{port}"
    finally:
        service.stop()


async def read_stream(both: Client, proxy: CuttingProxy) -> Read:
    """Read everything."""
    async with both.open_store(proxy.url, retries=_PATIENT) as store:
        inferences = store.model("model").inferences()
        if both.name == "sync":
            return await asyncio.to_thread(lambda: [show(each) for each in inferences.stream()])
        async with aclosing(inferences.stream()) as stream:
            return [show(each) async for each in stream]


def show(inference: Any) -> tuple[str, str]:
    return str(inference.uid), inference.inference_id


def draw_budgets(bytes: int) -> Iterator[int | None]:
    """Draw where a stream of so many bytes is cut; after the last cut it goes on to its end."""
    positions = sorted(Random(SEED).sample(range(1, bytes), CUTS))
    return chain((end - begin for begin, end in pairwise([0, *positions])), repeat(None))


@pytest.mark.timeout(1500)
async def test_a_stream_that_is_cut_at_200_random_bytes_is_the_same(
    api: str, expected: Read
) -> None:
    print(f"seed {SEED}")
    assert len(expected) == COUNT
    async with cutting_proxy(api, repeat(None)) as proxy:
        assert await read_stream(CLIENTS[0], proxy) == expected
        assert proxy.cuts == 0
        whole = proxy.passed
        for both in CLIENTS:
            proxy.cuts, proxy.budgets = 0, draw_budgets(whole)
            assert await read_stream(both, proxy) == expected, both.name
            assert proxy.cuts == CUTS, both.name
