"""Events that are set aside: refused objects, tries again, and the limit of dead letters."""

import asyncio
import json
import re
from collections import Counter
from pathlib import Path

import pytest
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.index import registrations, unsettled
from inference_store.index.registrations import Details
from inference_store.index.tables import audit, unsettled_event
from inference_store.index.unsettled import Selection, UnsettledEvent
from tests.integration.ingester.conftest import (
    MANY,
    RunningIngester,
    StartIngester,
    expire_parked,
    read_health,
    wait_for_counts,
    wait_until_ready,
)
from tests.polling import until
from tests.producer import Producer, capture
from tests.servers.fixtures import MakeEnvironment, unique
from tests.servers.minio import S3, MinioUser, statement
from tests.service_process import Service
from tests.transactions import transact
from tests.warm.process import run_command

_LIMIT = "dead letter limit"


async def wait_for_halt(service: Service) -> str:
    """Wait until the pipeline halts, and return the reason."""
    return await until(
        lambda: read_health(service, _LIMIT), lambda reason: "events could not be stored" in reason
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


REFUSED = [capture(number, prefix="refused") for number in range(100, 103)]


class Rights:
    """The rights of the ingester, and a way to start one with its credentials."""

    def __init__(self, user: MinioUser, bucket: str, start: StartIngester) -> None:
        self._user = user
        self._bucket = bucket
        self._start = start
        self.allow_all()

    @property
    def _list(self) -> dict[str, object]:
        return statement("Allow", ["ListBucket"], self._bucket)

    @property
    def _get(self) -> dict[str, object]:
        return statement("Allow", ["GetObject"], f"{self._bucket}/*")

    def allow_all(self) -> None:
        self._user.may(self._list, self._get)

    def refuse_one_prefix(self) -> None:
        deny = statement("Deny", ["GetObject"], f"{self._bucket}/refused/*")
        self._user.may(self._list, self._get, deny)

    def refuse_all(self) -> None:
        self._user.may(self._list)

    async def start_ingester(self, **changes: str) -> RunningIngester:
        """Start an ingester with these rights; return it and a producer with rights of its own."""
        service, producer = await self._start(**changes)
        service.stop()
        keys = {"S3_ACCESS_KEY": self._user.access_key, "S3_SECRET_KEY": self._user.secret_key}
        return service.restart(**keys), producer


@pytest.fixture
def rights(minio_server: S3, bucket: str, start_ingester: StartIngester) -> Rights:
    return Rights(MinioUser(minio_server, unique("user")), bucket, start_ingester)


async def count_set_aside(engine: AsyncEngine) -> Counter[str]:
    """Count parked events and dead letters by reason."""
    here = unsettled_event.c
    async with engine.connect() as connection:
        rows = await connection.execute(select(here.state, here.reason))
        return Counter(f"{state} {reason}" for state, reason in rows)


@pytest.mark.real_minio
async def test_a_refused_object_parks_its_event(rights: Rights, engine: AsyncEngine) -> None:
    rights.refuse_one_prefix()
    service, producer = await rights.start_ingester()
    await producer.produce(*MANY[:10], *REFUSED, *MANY[10:])
    await wait_for_counts(engine, stored=20, parked=3)
    assert await count_set_aside(engine) == {"parked blob_forbidden": 3}
    assert await read_health(service, "object store") == "ready"
    rights.allow_all()
    await wait_for_counts(engine, stored=23)


@pytest.mark.real_minio
async def test_a_lasting_refusal_makes_a_dead_letter(rights: Rights, engine: AsyncEngine) -> None:
    rights.refuse_one_prefix()
    _, producer = await rights.start_ingester(INGESTER_PARKED_GIVE_UP_SECONDS="1")
    # The refused object comes first and alone: no other shows that the bucket is readable.
    await producer.produce(REFUSED[0])
    await wait_for_counts(engine, dead=1)
    (letter,) = await transact(engine, unsettled.find, Selection(), limit=10)
    assert letter.rejection.reason == "blob_forbidden"
    assert "alone is refused" in letter.rejection.detail
    assert "AccessDenied" in letter.rejection.detail
    await producer.produce(MANY[0])
    await wait_for_counts(engine, stored=1, dead=1)


@pytest.mark.real_minio
async def test_waits_for_a_store_that_refuses_all(rights: Rights, engine: AsyncEngine) -> None:
    """Rights are removed while it runs; no more events are parked, and none become dead letters."""
    rights.refuse_one_prefix()
    service, producer = await rights.start_ingester()
    await producer.produce(MANY[0], REFUSED[0])
    await wait_for_counts(engine, stored=1, parked=1)
    rights.refuse_all()
    await producer.produce(*MANY[1:])
    health = await until(
        lambda: read_health(service, "object store"), lambda health: "Denied" in health
    )
    assert "AccessDenied" in health
    await expire_parked(engine)
    before = await count_troubles(service)
    await until(lambda: count_troubles(service), lambda count: count >= before + 4)
    await wait_for_counts(engine, stored=1, parked=1)
    assert await count_set_aside(engine) == {"parked blob_forbidden": 1}
    rights.allow_all()
    await wait_for_counts(engine, stored=21)
    await wait_until_ready(service, "object store")


async def count_troubles(service: Service) -> float:
    """Return how often the pipeline and the retries have waited."""
    return await asyncio.to_thread(service.metrics, "ingester_trouble_total")


LATE = capture(1)


async def list_waiting(engine: AsyncEngine) -> list[UnsettledEvent]:
    return await transact(engine, unsettled.find, Selection(state="parked"), limit=10)


async def list_letters(engine: AsyncEngine) -> list[UnsettledEvent]:
    return await transact(engine, unsettled.find, Selection(kind="dead letter"), limit=10)


async def test_an_event_parked_again_keeps_its_row(producer: Producer, engine: AsyncEngine) -> None:
    await producer.put(LATE, "metadata")
    await producer.publish(LATE.event)
    await wait_for_counts(engine, parked=1)
    [before] = await list_waiting(engine)
    [after] = await until(lambda: list_waiting(engine), lambda events: events[0].attempts >= 2)
    assert (after.id, after.created_at) == (before.id, before.created_at)
    await expire_parked(engine)
    await wait_for_counts(engine, dead=1)
    [letter] = await list_letters(engine)
    assert (letter.state, letter.rejection.reason) == ("open", "blob_missing")
    assert re.search(r"within \d+ tries", letter.rejection.detail)


@pytest.fixture
async def parked_letter(start_ingester: StartIngester, engine: AsyncEngine) -> Producer:
    """The producer of a dead letter that was redriven, and waits for its response."""
    _, producer = await start_ingester(INGESTER_UNKNOWN_MODELS="refuse")
    await producer.put(LATE, "metadata")
    await producer.publish(LATE.event)
    await wait_for_counts(engine, dead=1)
    async with engine.begin() as connection:
        await registrations.put(connection, LATE.model_id, Details())
        assert await unsettled.retry(connection, Selection()) == 1
    await wait_for_counts(engine, parked=1)
    assert [letter.state for letter in await list_letters(engine)] == ["parked"]
    return producer


async def test_parked_redriven_letter_is_settled_when_stored(
    parked_letter: Producer, engine: AsyncEngine
) -> None:
    await parked_letter.put(LATE, "response")
    await wait_for_counts(engine, stored=1)
    assert [letter.state for letter in await list_letters(engine)] == ["stored"]


@pytest.mark.usefixtures("parked_letter")
async def test_parked_redriven_letter_is_open_again_after_giving_up(engine: AsyncEngine) -> None:
    await expire_parked(engine)
    await wait_for_counts(engine, dead=1)
    assert await list_waiting(engine) == []
    assert [letter.state for letter in await list_letters(engine)] == ["open"]
    assert await transact(engine, unsettled.retry, Selection()) == 1
