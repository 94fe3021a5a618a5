"""A refused object holds up its own event; a store that refuses everything, the pipeline."""

import asyncio
from collections import Counter

import pytest
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.index import dead_letters
from inference_store.index.accounting import Outcome
from inference_store.index.dead_letters import Selection
from inference_store.index.tables import dead_letter, parked_event
from tests.e2e.faults.books_close import counted
from tests.integration.ingester.conftest import RunningIngester, StartIngester
from tests.integration.ingester.test_odd_traffic import part
from tests.polling import until
from tests.producer import capture
from tests.servers.fixtures import unique
from tests.servers.minio import S3
from tests.servers.minio_user import MinioUser, statement
from tests.service_process import Service

pytestmark = pytest.mark.real_minio
GIVEN = [capture(number) for number in range(20)]
REFUSED = [capture(number, prefix="refused") for number in range(100, 103)]


class Rights:
    """What the ingester may read, and a line that runs with its credentials."""

    def __init__(self, user: MinioUser, bucket: str, start: StartIngester) -> None:
        self._user = user
        self._bucket = bucket
        self._start = start
        self.all_given()

    @property
    def _list(self) -> dict[str, object]:
        return statement("Allow", ["ListBucket"], self._bucket)

    @property
    def _get(self) -> dict[str, object]:
        return statement("Allow", ["GetObject"], f"{self._bucket}/*")

    def all_given(self) -> None:
        self._user.may(self._list, self._get)

    def one_prefix_refused(self) -> None:
        deny = statement("Deny", ["GetObject"], f"{self._bucket}/refused/*")
        self._user.may(self._list, self._get, deny)

    def all_refused(self) -> None:
        self._user.may(self._list)

    async def start_ingester(self, **changes: str) -> RunningIngester:
        """A running ingester, and a producer with rights of its own."""
        service, producer = await self._start(**changes)
        service.stop()
        keys = {"S3_ACCESS_KEY": self._user.access_key, "S3_SECRET_KEY": self._user.secret_key}
        return service.restart(**keys), producer


@pytest.fixture
def rights(minio_server: S3, bucket: str, start_ingester: StartIngester) -> Rights:
    return Rights(MinioUser(minio_server, unique("user")), bucket, start_ingester)


async def set_aside(engine: AsyncEngine) -> Counter[str]:
    """How many are parked and dead, by reason."""
    found: Counter[str] = Counter()
    async with engine.connect() as connection:
        for table in (parked_event, dead_letter):
            query = select(table.c.reason, func.count()).group_by(table.c.reason)
            for reason, count in await connection.execute(query):
                found[f"{table.name} {reason}"] = count
    return found


async def test_a_refused_object_parks_its_event_until_it_is_given(
    rights: Rights, engine: AsyncEngine
) -> None:
    rights.one_prefix_refused()
    service, producer = await rights.start_ingester()
    await producer.produce(*GIVEN[:10], *REFUSED, *GIVEN[10:])
    await until(lambda: counted(engine), lambda found: found.total() == 23)
    assert +(await counted(engine)) == Counter({Outcome.STORED: 20, Outcome.PARKED: 3})
    assert await set_aside(engine) == {"parked_event blob_forbidden": 3}
    assert await part(service, "object store") == "ready"
    rights.all_given()
    await until(lambda: counted(engine), lambda found: found[Outcome.STORED] == 23)


async def test_an_object_that_is_never_given_makes_a_dead_letter(
    rights: Rights, engine: AsyncEngine
) -> None:
    rights.one_prefix_refused()
    _, producer = await rights.start_ingester(INGESTER_PARKED_GIVE_UP_SECONDS="1")
    # the refused one first and alone: nothing that was given tells that the bucket is well
    await producer.produce(REFUSED[0])
    await until(lambda: counted(engine), lambda found: found[Outcome.DEAD] == 1)
    async with engine.connect() as connection:
        (letter,) = await dead_letters.find(connection, Selection(), limit=10)
    assert letter.trouble.reason == "blob_forbidden"
    assert "alone is refused" in letter.trouble.detail
    assert "AccessDenied" in letter.trouble.detail
    await producer.produce(GIVEN[0])
    await until(lambda: counted(engine), lambda found: found[Outcome.STORED] == 1)


async def test_a_store_that_refuses_everything_is_waited_for(
    rights: Rights, engine: AsyncEngine
) -> None:
    """Rights taken under the running line; parked ones neither grow in number nor die."""
    rights.one_prefix_refused()
    service, producer = await rights.start_ingester(INGESTER_PARKED_GIVE_UP_SECONDS="3")
    await producer.produce(GIVEN[0], REFUSED[0])
    await until(lambda: counted(engine), lambda found: found.total() == 2)
    rights.all_refused()
    await producer.produce(*GIVEN[1:])
    said = await until(lambda: part(service, "object store"), lambda said: "Denied" in said)
    assert "AccessDenied" in said
    # for longer than a parked event may wait
    await until(lambda: troubles(service), lambda count: count >= 8)
    assert +(await counted(engine)) == Counter({Outcome.STORED: 1, Outcome.PARKED: 1})
    assert await set_aside(engine) == {"parked_event blob_forbidden": 1}
    rights.all_given()
    await until(lambda: counted(engine), lambda found: found[Outcome.STORED] == 21, seconds=180)
    assert +(await counted(engine)) == Counter({Outcome.STORED: 21})
    await until(lambda: part(service, "object store"), lambda said: said == "ready")


async def troubles(service: Service) -> float:
    """How often the pipeline and the retries have waited."""
    return await asyncio.to_thread(service.metrics, "ingester_trouble_total")
