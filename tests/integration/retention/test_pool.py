"""A pool of connections that stays busy is trouble of Postgres: it is waited out."""

import asyncio

from sqlalchemy.ext.asyncio import create_async_engine

from inference_store.objects import Blobs
from inference_store.platform.admin import Heartbeat
from inference_store.platform.settings import RetentionSettings
from inference_store.retention.run import _Retention


async def test_a_pool_that_is_busy_is_waited_for(
    database: str, settings: RetentionSettings, blobs: Blobs
) -> None:
    address = database.replace("postgresql://", "postgresql+asyncpg://")
    engine = create_async_engine(address, pool_size=1, max_overflow=0, pool_timeout=0.05)
    quick = settings.model_copy(update={"retention_poll_seconds": 0.01})
    retention = _Retention(quick, engine, blobs, Heartbeat(), asyncio.Event(), kafka=None)
    try:
        async with engine.connect():
            await retention._work_until_error()
            assert "QueuePool" in str(await retention._check_postgres())
            retention._unavailable.clear()
            assert "Postgres is unavailable: QueuePool" in str(await retention._check_postgres())
        assert await retention._check_postgres() is None
    finally:
        await engine.dispose()
