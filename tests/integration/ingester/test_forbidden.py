"""A refused object delays its own event; a store that refuses everything stops the pipeline."""

import asyncio
from collections import Counter
from datetime import timedelta

import pytest
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.index import unsettled
from inference_store.index.tables import unsettled_event
from inference_store.index.unsettled import Selection
from tests.integration.ingester.conftest import (
    MANY,
    RunningIngester,
    StartIngester,
    read_health,
    wait_for_counts,
    wait_until_ready,
)
from tests.polling import until
from tests.producer import capture
from tests.servers.fixtures import unique
from tests.servers.minio import S3
from tests.servers.minio_user import MinioUser, statement
from tests.service_process import Service
from tests.transactions import execute, transact

pytestmark = pytest.mark.real_minio
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


async def test_refused_object_parks_its_event_until_it_is_readable(
    rights: Rights, engine: AsyncEngine
) -> None:
    rights.refuse_one_prefix()
    service, producer = await rights.start_ingester()
    await producer.produce(*MANY[:10], *REFUSED, *MANY[10:])
    await wait_for_counts(engine, stored=20, parked=3)
    assert await count_set_aside(engine) == {"parked blob_forbidden": 3}
    assert await read_health(service, "object store") == "ready"
    rights.allow_all()
    await wait_for_counts(engine, stored=23)


async def test_object_that_stays_refused_makes_a_dead_letter(
    rights: Rights, engine: AsyncEngine
) -> None:
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


async def test_waits_for_a_store_that_refuses_everything(
    rights: Rights, engine: AsyncEngine
) -> None:
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
    # It has been parked for longer than it may, and is due.
    long_ago = func.now() - timedelta(days=2)
    await execute(
        engine, unsettled_event.update().values(created_at=long_ago, next_attempt_at=long_ago)
    )
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
