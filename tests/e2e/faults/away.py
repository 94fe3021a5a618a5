"""What an ingester says while a server is away, and how much it may say."""

import asyncio

from tests.service_process import Service

AWAY_SECONDS = 4.0
# With waits of 0.2, 0.4, 0.8 … seconds, by the reader, the writer and the retries.
MOST_TROUBLE = 60


async def said_to_be_away(service: Service) -> dict[str, str]:
    """What /health/ready says is not ready, and why."""
    assert service.process.running, service.text[-4000:]
    parts = (await asyncio.to_thread(service.health))["parts"]
    return {part: reason for part, reason in parts.items() if reason != "ready"}


def check_it_did_not_spin(service: Service) -> None:
    """Trouble is counted and logged at each try, and tries are further and further apart."""
    assert service.metrics("ingester_trouble_total") <= MOST_TROUBLE
    assert service.text.count("\n") < 5 * MOST_TROUBLE
