"""An ingester that is killed repeatedly."""

from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.index.accounting import Outcome
from inference_store.ingester.batch_builder import FIRST_EVENTS
from tests.e2e.faults.books_close import counted
from tests.integration.ingester.conftest import StartIngester
from tests.polling import until
from tests.producer import capture

_MANY = [capture(number) for number in range(100)]


async def test_stores_a_small_batch_before_each_kill(
    start_ingester: StartIngester, engine: AsyncEngine
) -> None:
    service, producer = await start_ingester()
    service.stop()
    await producer.produce(*_MANY)
    stored = 0
    for _ in range(3):
        service.restart(FAILPOINT="ingester.commit.after")
        service.process.wait(180)
        before, stored = stored, (await counted(engine))[Outcome.STORED]
        assert 0 < stored - before <= FIRST_EVENTS
    service.restart(FAILPOINT=None)
    await until(lambda: counted(engine), lambda counts: counts[Outcome.STORED] == len(_MANY))
