"""The audit has a retention of its own: a scheduled run removes what is old enough, to the last."""

import asyncio

from sqlalchemy import func, select, text
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.retention.leader import Leader
from inference_store.retention.pace import Pace
from inference_store.store.admin import Heartbeat
from inference_store.store.blobs import Blobs
from inference_store.store.retention.leadership import candidacy
from inference_store.store.settings import RetentionSettings
from inference_store.store.tables import audit


async def test_a_scheduled_run_prunes_the_audit(
    engine: AsyncEngine, blobs: Blobs, settings: RetentionSettings
) -> None:
    async with engine.begin() as connection:
        await connection.execute(
            text(
                "INSERT INTO audit (at, actor, action)"
                " SELECT now() - n * interval '1 second', 'x', 'y'"
                " FROM generate_series(25000, 1, -1) AS n"
            )
        )
    keep = settings.model_copy(update={"audit_keep_seconds": 1000.0})
    due = asyncio.Event()
    due.set()
    async with candidacy(engine) as leadership:
        assert await leadership.take()
        leader = Leader(keep, engine, blobs, Pace(leadership, Heartbeat(), asyncio.Event()), due)
        await leader.turn()
    async with engine.connect() as connection:
        left = await connection.scalar(select(func.count()).select_from(audit))
    assert left is not None
    assert 900 <= left <= 1000
