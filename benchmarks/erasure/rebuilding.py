"""How fast `inference-store reconcile --repair rebuild` indexes a model from the bucket alone."""

import asyncio
import os
import time
from collections.abc import Mapping
from typing import Any

from tests.servers.fixtures import migrate, unique
from tests.servers.postgres import PostgresServer
from tests.settings import read_settings

from benchmarks.servers import CpuClock, PidsByName
from inference_store.index.database import create_engine
from inference_store.ingester.rebuild import Rebuild
from inference_store.objects import Blobs
from inference_store.operations.reconcile import stored_reports
from inference_store.platform.settings import IngesterSettings

_THREADS = 16


async def measure(
    postgres: PostgresServer,
    environment: Mapping[str, str],
    model_id: str,
    *,
    count: int,
    pids: PidsByName,
) -> dict[str, Any]:
    """Seconds of so many, into an empty database, and microseconds of CPU of each by process;
    without the comparison that follows."""
    name = unique("rebuilt")
    dsn = await asyncio.to_thread(postgres.create_database, name)
    await asyncio.to_thread(migrate, dsn)
    settings = read_settings(IngesterSettings, environment)
    engine = create_engine(dsn)
    try:
        with Blobs(settings, threads=_THREADS) as blobs:
            prefixes = stored_reports.parse_prefixes("captures", blobs.buckets, model_id=model_id)
            async with engine.begin() as connection:
                requested = await stored_reports.request_reconciliation(
                    connection, model_id=model_id, cause="command", repair="rebuild"
                )
            clock = CpuClock({"rebuild": lambda: [os.getpid()], **pids})
            started = time.perf_counter()
            done = await Rebuild(settings, engine, blobs).run(requested, prefixes)
            seconds = time.perf_counter() - started
            cpu = {name: 1e6 * spent / count for name, spent in clock.used().items()}
    finally:
        await engine.dispose()
        await asyncio.to_thread(postgres.drop_database, name)
    if done.counts != {"rebuilt": count, "unreadable": 0}:
        raise RuntimeError(f"not {count} were rebuilt: {done.counts}")
    return {"inferences": count, "seconds": seconds, "cpu": cpu}
