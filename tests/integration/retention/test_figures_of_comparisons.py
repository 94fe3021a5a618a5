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


def _read_figures() -> dict[str, float]:
    return {
        sample.labels["what"]: sample.value
        for family in RECONCILED.collect()
        for sample in family.samples
    }


async def _insert_comparison(engine: AsyncEngine, hours: float, **values: Any) -> None:
    columns = {"id": uuid4(), "cause": "command", "repair": "none", "state": "done"}
    columns |= {"finished_at": ago(hours=hours), **values}
    async with engine.begin() as connection:
        await connection.execute(reconciliation.insert().values(**columns))


async def test_a_leader_shows_what_another_found(
    engine: AsyncEngine, settings: RetentionSettings
) -> None:
    async with engine.connect() as connection:
        assert await figures.read_reconciliation(connection) is None
    await _insert_comparison(
        engine, 9, counts={"orphans": 7, "missing": 2}, books={"difference": 3}
    )
    await _insert_comparison(engine, 5, counts={"orphans": 4, "young": 1}, books={"difference": -1})
    await _insert_comparison(engine, 2, counts={"orphans": 99}, model_id="one alone")
    await _insert_comparison(engine, 1, counts={"orphans": 98}, state="failed")

    async def read_figures() -> dict[str, float]:
        return _read_figures()

    async with set_gauges(engine, settings):
        samples = await until(read_figures, lambda samples: samples.get("orphans") is not None)
        apart = {name: count for name, count in samples.items() if count}
        assert apart == {"orphans": 4, "young": 1, "difference": -1}
        assert LAST_RECONCILIATION._value.get() == ago(hours=5).timestamp()
    # who leads no more shows nothing that it would have to take back
    assert _read_figures() == {}
