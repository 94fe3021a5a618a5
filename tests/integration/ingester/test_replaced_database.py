"""The database is recreated under a running ingester."""

import asyncio
from urllib.parse import urlsplit

from inference_store.index.database import create_engine
from tests.polling import until
from tests.producer import capture
from tests.servers.fixtures import migrate
from tests.servers.postgres import Postgres

from .conftest import MANY, RunningIngester, read_health, wait_for_counts


async def test_waits_for_the_tables_and_reads_the_topic_again(
    running: RunningIngester, postgres_server: Postgres, database: str
) -> None:
    """Live and not ready, and it says what to run; nothing that it remembers is used again."""
    service, producer = running
    await producer.produce(*MANY)
    engine = create_engine(database)
    await wait_for_counts(engine, stored=len(MANY))
    await engine.dispose()

    name = urlsplit(database).path.removeprefix("/")
    await asyncio.to_thread(postgres_server.drop_database, name)
    await asyncio.to_thread(postgres_server.create_database, name)
    await producer.produce(capture(len(MANY)))
    await until(
        lambda: read_health(service, "postgres"), lambda said: "inference-store migrate" in said
    )
    assert service.process.running
    assert "database_replaced" in service.text

    await asyncio.to_thread(migrate, database)
    engine = create_engine(database)
    await wait_for_counts(engine, stored=len(MANY) + 1)
    await engine.dispose()
