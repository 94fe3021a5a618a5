"""Sessions that wait for locks in Postgres."""

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.index.distribution import is_distributed


async def count_lock_waiters(engine: AsyncEngine) -> int:
    """Return how many sessions of the database wait for a lock, on Citus those of every node."""
    async with engine.connect() as connection:
        everywhere = await is_distributed(connection)
        view = "citus_stat_activity" if everywhere else "pg_stat_activity"
        query = (
            f"SELECT count(*) FROM {view}"
            " WHERE wait_event_type = 'Lock' AND datname = current_database()"
        )
        return int(await connection.scalar(text(query)) or 0)
