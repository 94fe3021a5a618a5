"""The gauges of what was found apart: of the newest comparison of everything, whoever made it."""

from typing import Any
from uuid import uuid4

from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.index.tables import reconciliation
from inference_store.operations import figures
from inference_store.platform.metrics import LAST_RECONCILIATION, RECONCILED
from inference_store.platform.settings import RetentionSettings
from inference_store.retention.watch import set_gauges
from tests.integration.retention.stored import ago
from tests.polling import until


def _found() -> dict[str, float]:
    return {
        one.labels["what"]: one.value for family in RECONCILED.collect() for one in family.samples
    }


async def _compared(engine: AsyncEngine, hours: float, **values: Any) -> None:
    given = {"id": uuid4(), "cause": "command", "repair": "none", "state": "done"}
    given |= {"finished_at": ago(hours=hours), **values}
    async with engine.begin() as connection:
        await connection.execute(reconciliation.insert().values(**given))


async def test_a_leader_shows_what_another_found(
    engine: AsyncEngine, settings: RetentionSettings
) -> None:
    async with engine.connect() as connection:
        assert await figures.read_reconciliation(connection) is None
    await _compared(engine, 9, counts={"orphans": 7, "missing": 2}, books={"difference": 3})
    await _compared(engine, 5, counts={"orphans": 4, "young": 1}, books={"difference": -1})
    await _compared(engine, 2, counts={"orphans": 99}, model_id="one alone")
    await _compared(engine, 1, counts={"orphans": 98}, state="failed")

    async def shown() -> dict[str, float]:
        return _found()

    async with set_gauges(engine, settings):
        found = await until(shown, lambda found: found.get("orphans") is not None)
        apart = {name: count for name, count in found.items() if count}
        assert apart == {"orphans": 4, "young": 1, "difference": -1}
        assert LAST_RECONCILIATION._value.get() == ago(hours=5).timestamp()
    # who leads no more shows nothing that it would have to take back
    assert _found() == {}
