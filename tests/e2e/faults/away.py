"""An ingester while a server is unavailable: what it says, how often it tries, and its limit."""

import asyncio

from tests.polling import until
from tests.service_process import Service

# With waits of 0.2, 0.4, 0.8 … seconds, by the reader, the writer and the retries.
MOST_TROUBLE = 60
_TRIES = 3


async def read_unready_parts(service: Service) -> dict[str, str]:
    """Return the parts that /health/ready reports as not ready, with the reason of each."""
    assert service.process.running, service.text[-4000:]
    parts = (await asyncio.to_thread(service.health))["parts"]
    return {part: reason for part, reason in parts.items() if reason != "ready"}


async def wait_for_tries(service: Service, part: str) -> str:
    """Wait until an ingester has tried a server that is away again and again; return the reason
    that it gives."""

    async def count() -> float:
        return await asyncio.to_thread(service.metrics, "ingester_trouble_total")

    await until(lambda: read_unready_parts(service), lambda away: part in away)
    before = await count()
    await until(count, lambda tries: tries >= before + _TRIES)
    away = await until(lambda: read_unready_parts(service), lambda away: part in away)
    return away[part]


def check_it_did_not_spin(service: Service) -> None:
    """Check that each try counts and logs its trouble, and that tries are ever further apart."""
    assert service.metrics("ingester_trouble_total") <= MOST_TROUBLE
    assert service.text.count("\n") < 5 * MOST_TROUBLE
