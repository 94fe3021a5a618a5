"""Many bad messages: what is general halts the pipeline, what is confined is set aside."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.index.accounting import Outcome
from inference_store.index.tables import audit
from tests.e2e.faults.books_close import counted
from tests.integration.ingester.conftest import StartIngester
from tests.integration.ingester.test_odd_traffic import MANY, part
from tests.polling import until
from tests.producer import capture
from tests.servers.fixtures import MakeEnvironment
from tests.service_process import Service
from tests.warm.process import run_command

_LIMIT = "dead letter limit"
Settled = Callable[[Counter[Outcome]], bool]


def settled(*, stored: int, dead: int) -> Settled:
    return lambda counts: +counts == +Counter({Outcome.STORED: stored, Outcome.DEAD: dead})


async def halted(service: Service) -> str:
    """Why the pipeline halts, once it does."""
    return await until(lambda: part(service, _LIMIT), lambda reason: reason != "ready")


def broken(number: int) -> bytes:
    """An event of the model of MANY that cannot be stored."""
    event = json.loads(capture(number).event)
    return json.dumps(event | {"request_received_at": "yesterday"}).encode()


async def test_many_bad_messages_halt_the_line(
    start_ingester: StartIngester, engine: AsyncEngine
) -> None:
    service, producer = await start_ingester(INGESTER_DEAD_LETTER_LIMIT="5")
    await producer.publish_all([b"bad"] * 20)
    assert "events could not be stored" in await halted(service)
    assert service.metrics("ingester_halted") == 1
    assert (await counted(engine)).total() == 0
    service.stop()
    service.restart(INGESTER_DEAD_LETTER_LIMIT="50")
    await producer.produce(*MANY)
    await until(lambda: counted(engine), settled(stored=20, dead=20))


async def test_nobody_waits_for_the_bad_messages_of_one_source(
    start_ingester: StartIngester, engine: AsyncEngine
) -> None:
    service, producer = await start_ingester(INGESTER_DEAD_LETTER_LIMIT="5")
    await producer.produce(*MANY[:10])
    await until(lambda: counted(engine), settled(stored=10, dead=0))
    another = [json.dumps(json.loads(broken(number)) | {"model_id": "m"}) for number in range(20)]
    await producer.publish_all([b"bad"] * 30 + [event.encode() for event in another])
    await producer.produce(*MANY[10:])
    await until(lambda: counted(engine), settled(stored=20, dead=50))
    assert service.metrics("ingester_halted") == 0
    assert '"action": "confined"' in service.text


async def test_what_was_stored_and_fails_now_is_general(
    start_ingester: StartIngester, engine: AsyncEngine
) -> None:
    service, producer = await start_ingester(INGESTER_DEAD_LETTER_LIMIT="5")
    await producer.produce(*MANY)
    await until(lambda: counted(engine), settled(stored=20, dead=0))
    await producer.publish_all([broken(number) for number in range(100, 120)])
    assert "events could not be stored" in await halted(service)
    assert +(await counted(engine)) == Counter({Outcome.STORED: 20})


async def test_an_operator_resumes(
    start_ingester: StartIngester,
    engine: AsyncEngine,
    service_environment: MakeEnvironment,
    tmp_path: Path,
) -> None:
    service, producer = await start_ingester(INGESTER_DEAD_LETTER_LIMIT="5")
    await producer.publish_all([b"bad"] * 20)
    assert "inference-store resume" in await halted(service)
    done = run_command("resume", environment=service_environment(), folder=tmp_path)
    assert done.returncode == 0, done.stderr
    await until(lambda: counted(engine), settled(stored=0, dead=20))
    await until(lambda: part(service, _LIMIT), lambda reason: reason == "ready")
    async with engine.connect() as connection:
        entries = (await connection.execute(select(audit.c.action, audit.c.detail))).all()
    assert [entry.action for entry in entries] == ["limit_lifted"]
    assert entries[0].detail["until"][:19] in done.stdout


@pytest.mark.parametrize("duration", ["P2D", "P1M", "forever", "x"])
async def test_how_long_the_limit_may_be_lifted(
    service_environment: MakeEnvironment, tmp_path: Path, duration: str
) -> None:
    environment = service_environment()
    refused = run_command("resume", "--for", duration, environment=environment, folder=tmp_path)
    assert refused.returncode == 2
    assert "--for" in refused.stderr
