"""An installation that grows: it has rows before its tables are distributed to nodes."""

from collections.abc import AsyncIterator

import pytest
from sqlalchemy import func, select, text
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.index.database import create_engine
from inference_store.index.distribution import distribute
from inference_store.index.tables import inference
from tests.integration.stored_inferences import NewInference, store
from tests.servers.citus import Citus
from tests.servers.fixtures import migrate, unique
from tests.servers.marks import on_citus

MODELS = tuple(f"model {number}" for number in range(6))
NODES = text(
    "SELECT count(DISTINCT nodeport) FROM citus_shards WHERE table_name = 'inference'::regclass"
)


@pytest.fixture
async def grown_engine(postgres_server: Citus) -> AsyncIterator[AsyncEngine]:
    """Create a database, and distribute it to several nodes after its first rows came."""
    name = unique()
    dsn = postgres_server.create_database(name)
    migrate(dsn)
    engine = create_engine(dsn)
    for model_id in MODELS:
        await store(engine, NewInference("before", model_id=model_id, metadata=[("k", "int", "1")]))
    await engine.dispose()
    await distribute(dsn, shards=4, say=lambda _: None)
    yield engine
    await engine.dispose()
    postgres_server.drop_database(name)


@on_citus
async def test_moves_earlier_rows_to_their_shards(
    grown_engine: AsyncEngine, postgres_server: Citus
) -> None:
    for model_id in MODELS:
        await store(
            grown_engine, NewInference("after", model_id=model_id, metadata=[("k", "int", "2")])
        )
    here = inference.c
    async with grown_engine.connect() as connection:
        counted = select(here.model, func.count()).group_by(here.model)
        counts = [number for _, number in await connection.execute(counted)]
        assert counts == [2] * len(MODELS)
        assert await connection.scalar(NODES) == max(1, len(postgres_server.workers))
