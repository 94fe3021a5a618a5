"""`inference-store distribute`: what it refuses, and how it changes the tables."""

import subprocess
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import func, select, text
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.index import partitions
from inference_store.index.database import create_engine
from inference_store.index.dictionary import Dictionary
from inference_store.index.distribution import CannotDistribute, is_distributed, spread, steps
from inference_store.index.tables import metadata_key, partition_count, registration
from inference_store.query.counting import count_ended
from tests.integration.citus.stand_in import install_stand_in
from tests.integration.stored_inferences import START, NewInference, store
from tests.servers.marks import plain_postgres
from tests.servers.postgres import Postgres
from tests.transactions import fetch, transact
from tests.warm.process import run_command


def run_distribute(dsn: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {"INFERENCE_STORE_POSTGRES_DSN": dsn, "PATH": ""}
    return run_command("distribute", *arguments, environment=environment)


@plain_postgres
def test_refuses_a_plain_postgres_with_the_remedy(database: str) -> None:
    available = "SELECT count(*) FROM pg_available_extensions WHERE name = 'citus'"
    because = "is installed but not loaded" if Postgres(database).ask(available) else "has no Citus"
    refused = run_distribute(database)
    assert refused.returncode == 1
    assert because in refused.stderr
    assert "nothing was changed" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_rejects_an_invalid_number_of_shards(database: str) -> None:
    for shards in ("0", "1025", "many"):
        refused = run_distribute(database, "--shards", shards)
        assert refused.returncode == 2, shards
        assert "is not a whole number from 1 to 1024" in refused.stderr


@plain_postgres
async def test_distributes_every_table_once(engine: AsyncEngine) -> None:
    """Afterwards numbers continue where they were, and partitions are made and dropped."""
    first = await store(engine, NewInference("a", model_id="one", metadata=[("k", "int", "1")]))
    await install_stand_in(engine)
    messages: list[str] = []
    await spread(engine, shards=32, say=messages.append)
    assert len(messages) == len(steps(set(), shards=32)) + 1
    assert messages[-1].startswith("The tables are distributed.")
    assert await transact(engine, is_distributed)
    await spread(engine, shards=32, say=messages.append)
    assert messages[-1].startswith("The tables are distributed already.")
    second = await store(engine, NewInference("a", model_id="two", metadata=[("l", "int", "1")]))
    models = await fetch(engine, select(registration.c.model))
    keys = await fetch(engine, select(metadata_key.c.key))
    assert sorted(models) == [first, second] == [1, 2]
    assert sorted(keys) == [1, 2]
    dictionary = Dictionary(engine)
    await dictionary.resolve({first: ["k"]}, {first: ["person"]})
    assert dictionary.keys.number(first, "k") == 1
    at = START + timedelta(days=40)
    span = (await partitions.make_missing(engine, [at], target=1000)).find(at)
    assert span is not None
    await partitions.drop(engine, span)
    assert span not in await transact(engine, partitions.list_partitions)


@plain_postgres
async def test_drops_counts_and_their_triggers_first(engine: AsyncEngine) -> None:
    await store(engine, NewInference("a"))
    later = datetime(2100, 1, 1, tzinfo=UTC)
    await count_ended(engine, seconds=60, before=later)
    triggers = text("SELECT count(*) FROM pg_trigger WHERE tgname = 'outdate_counts'")
    counts = select(func.count()).select_from(partition_count)
    async with engine.connect() as connection:
        assert (await connection.scalar(triggers), await connection.scalar(counts)) == (1, 1)
    await install_stand_in(engine)
    await spread(engine, shards=32, say=lambda _: None)
    await count_ended(engine, seconds=60, before=later)
    async with engine.connect() as connection:
        assert (await connection.scalar(triggers), await connection.scalar(counts)) == (0, 0)


@plain_postgres
async def test_continues_after_a_crash(engine: AsyncEngine) -> None:
    await install_stand_in(engine)

    def crash(sentence: str) -> None:
        if sentence.startswith("label"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        await spread(engine, shards=32, say=crash)
    messages: list[str] = []
    await spread(engine, shards=32, say=messages.append)
    assert messages[0].startswith("model_key")


@plain_postgres
async def test_refuses_while_services_run(engine: AsyncEngine, database: str) -> None:
    await install_stand_in(engine)
    service = create_engine(database, application="inference-store-ingester")
    try:
        async with service.connect() as connection:
            await connection.execute(text("SELECT 1"))
            with pytest.raises(
                CannotDistribute, match="use the database: inference-store-ingester"
            ):
                await spread(engine, shards=32, say=lambda _: None)
    finally:
        await service.dispose()
