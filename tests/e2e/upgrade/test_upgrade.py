"""A version goes on working on the schema of the next, during the migration and after it."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import httpx
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.index.migration import upgrade
from tests.e2e.faults.traffic import Published, make_captures
from tests.producer import Producer
from tests.servers.fixtures import MakeEnvironment, MakeTopic
from tests.servers.ports import free_port
from tests.service_process import Service
from tests.synthetic_migration import copy_migrations_with_one_more

EVENTS = 100
# Typed values and predictions of most, and what a page shows of the newest.
QUESTION = {
    "metadata_filter": [{"key": "frame_number", "type": "int", "operator": "gte", "value": "50"}],
    "prediction": {"label": "car", "score": {"gte": 0.4}},
    "include": ["metadata", "predictions"],
    "limit": 10,
}


async def test_the_version_before_runs_on_the_new_schema(
    service_environment: MakeEnvironment,
    topic: MakeTopic,
    database: str,
    engine: AsyncEngine,
    bucket: str,
    tmp_path: Path,
) -> None:
    """This version is the one before a made-up migration."""
    name, port = topic(2), free_port()
    environment = service_environment(
        KAFKA_TOPIC=name, API_PORT=str(port), INGESTER_BATCH_EVENTS="50"
    )
    url = f"http://127.0.0.1:{port}/v1/models/people-detector/inferences"

    async def send_and_check(turn: int) -> None:
        more = make_captures(range(turn * EVENTS, (turn + 1) * EVENTS))
        await producer.put_all(more)
        await published.publish(more, again=10)
        await published.check_ingested()
        counted = await http.post(f"{url}/count", json={})
        assert counted.json()["count"] == (turn + 1) * EVENTS
        items = (await http.post(f"{url}/query", json=QUESTION)).json()["items"]
        assert [len(item["predictions"]) for item in items] == [2] * 10

    async with AsyncExitStack() as opened:
        producer = await opened.enter_async_context(Producer(environment, name))
        published = Published(producer, engine, bucket)
        http = await opened.enter_async_context(httpx.AsyncClient(timeout=300))
        services = [Service(service, environment, tmp_path) for service in ("ingester", "api")]
        for service in services:
            opened.callback(service.stop)
        for service in services:
            await asyncio.to_thread(service.wait_ready)
        await send_and_check(0)
        migrations = copy_migrations_with_one_more(tmp_path)
        await asyncio.to_thread(upgrade, database, migrations=migrations)
        await send_and_check(1)
        # what a rollback does: it starts on the newer schema
        for service in services:
            await asyncio.to_thread(service.stop)
            service.restart()
            await asyncio.to_thread(service.wait_ready)
        await send_and_check(2)
