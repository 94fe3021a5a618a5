"""Many bad messages: a general fault halts the pipeline, one of a single source does not."""

import json
from pathlib import Path

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.index.tables import audit
from tests.integration.ingester.conftest import (
    MANY,
    StartIngester,
    read_health,
    wait_for_counts,
    wait_until_ready,
)
from tests.polling import until
from tests.producer import capture
from tests.servers.fixtures import MakeEnvironment
from tests.service_process import Service
from tests.warm.process import run_command

_LIMIT = "dead letter limit"


async def wait_for_halt(service: Service) -> str:
    """Wait until the pipeline halts, and return the reason."""
    return await until(
        lambda: read_health(service, _LIMIT),
        lambda reason: "events could not be stored" in reason,
    )


def make_broken_event(number: int) -> bytes:
    """Return an event of the model of MANY that cannot be stored."""
    event = json.loads(capture(number).event)
    return json.dumps(event | {"request_received_at": "yesterday"}).encode()


async def test_many_bad_messages_halt_the_line(
    start_ingester: StartIngester, engine: AsyncEngine
) -> None:
    service, producer = await start_ingester(INGESTER_DEAD_LETTER_LIMIT="5")
    # so that the first batch is over the limit
    await producer.publish_at_once([b"bad"] * 20)
    await wait_for_halt(service)
    assert service.metrics("ingester_halted") == 1
    await wait_for_counts(engine)
    service.stop()
    service.restart(INGESTER_DEAD_LETTER_LIMIT="50")
    await producer.produce(*MANY)
    await wait_for_counts(engine, stored=20, dead=20)


async def test_nobody_waits_for_the_bad_messages_of_one_source(
    start_ingester: StartIngester, engine: AsyncEngine
) -> None:
    service, producer = await start_ingester(INGESTER_DEAD_LETTER_LIMIT="5")
    await producer.produce(*MANY[:10])
    await wait_for_counts(engine, stored=10)
    another = [
        json.dumps(json.loads(make_broken_event(number)) | {"model_id": "m"})
        for number in range(20)
    ]
    await producer.publish_all([b"bad"] * 30 + [event.encode() for event in another])
    await producer.produce(*MANY[10:])
    await wait_for_counts(engine, stored=20, dead=50)
    assert service.metrics("ingester_halted") == 0
    assert '"action": "confined"' in service.text


async def test_failures_of_a_stored_model_halt_the_line(
    start_ingester: StartIngester, engine: AsyncEngine
) -> None:
    service, producer = await start_ingester(INGESTER_DEAD_LETTER_LIMIT="5")
    await producer.produce(*MANY)
    await wait_for_counts(engine, stored=20)
    await producer.publish_at_once([make_broken_event(number) for number in range(100, 120)])
    await wait_for_halt(service)
    await wait_for_counts(engine, stored=20)


async def test_operator_resumes(
    start_ingester: StartIngester,
    engine: AsyncEngine,
    service_environment: MakeEnvironment,
    tmp_path: Path,
) -> None:
    service, producer = await start_ingester(INGESTER_DEAD_LETTER_LIMIT="5")
    await producer.publish_all([b"bad"] * 20)
    assert "inference-store resume" in await wait_for_halt(service)
    done = run_command("resume", environment=service_environment(), folder=tmp_path)
    assert done.returncode == 0, done.stderr
    await wait_for_counts(engine, dead=20)
    await wait_until_ready(service, _LIMIT)
    async with engine.connect() as connection:
        entries = (await connection.execute(select(audit.c.action, audit.c.detail))).all()
    assert [entry.action for entry in entries] == ["limit_lifted"]
    assert entries[0].detail["until"][:19] in done.stdout


def test_rejects_invalid_durations(service_environment: MakeEnvironment, tmp_path: Path) -> None:
    environment = service_environment()
    for duration in ("P2D", "P1M", "forever", "x"):
        refused = run_command("resume", "--for", duration, environment=environment, folder=tmp_path)
        assert refused.returncode == 2, duration
        assert "--for" in refused.stderr
