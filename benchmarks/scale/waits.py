"""What Postgres' sessions do while ingesters write: run on a core, or wait, and for what."""

import asyncio
from collections import Counter

import asyncpg

_SESSIONS = (
    "SELECT state, wait_event_type FROM pg_stat_activity"
    " WHERE datname = current_database() AND application_name = 'inference-store-ingester'"
)
_SAMPLE_SECONDS = 0.1


class Waits:
    """Samples of the ingesters' sessions, ten a second, from entering to leaving."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self.seen: Counter[str] = Counter()
        self.samples = 0

    async def __aenter__(self) -> "Waits":
        self._connection = await asyncpg.connect(self._dsn)
        self._task = asyncio.create_task(self._sample())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self._connection.close()

    async def _sample(self) -> None:
        while True:
            rows = await self._connection.fetch(_SESSIONS)
            self.seen.update(_doing(*row) for row in rows)
            self.samples += 1
            await asyncio.sleep(_SAMPLE_SECONDS)

    def mean(self, what: str) -> float:
        """Sessions that were at it, on average."""
        return self.seen[what] / max(self.samples, 1)


def _doing(state: str, wait: str | None) -> str:
    if state != "active":
        return "idle in transaction" if "transaction" in state else "idle"
    if wait in {"Client", None}:
        # Client: COPY waits for its next bytes
        return "copying" if wait else "running"
    return {"Lock": "locks", "LWLock": "inner locks", "IO": "disk", "IPC": "others"}.get(wait, wait)
