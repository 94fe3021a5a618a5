"""Messages of an ingester while a server is unavailable, and their limit."""

import asyncio

from tests.service_process import Service

AWAY_SECONDS = 4.0
# With waits of 0.2, 0.4, 0.8 … seconds, by the reader, the writer and the retries.
MOST_TROUBLE = 60


async def read_unready_parts(service: Service) -> dict[str, str]:
    """Return the parts that /health/ready reports as not ready, with the reason of each."""
    assert service.process.running, service.text[-4000:]
    parts = (await asyncio.to_thread(service.health))["parts"]
    return {part: reason for part, reason in parts.items() if reason != "ready"}


def check_it_did_not_spin(service: Service) -> None:
    """Check that each try counts and logs its trouble, and that tries are ever further apart."""
    assert service.metrics("ingester_trouble_total") <= MOST_TROUBLE
    assert service.text.count("\n") < 5 * MOST_TROUBLE
