"""What a statement's transaction is told of planning and time, its workers are told too."""

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.index.tables import inference
from inference_store.query.bounded import Deadline, fetch
from tests.integration.stored import Made, at, store
from tests.servers.marks import on_citus


@on_citus
async def test_a_statements_settings_reach_the_workers(engine: AsyncEngine) -> None:
    await store(engine, Made("a1", at(1), [], []))
    names = ("enable_nestloop", "statement_timeout")
    # of a volatile argument, so that the coordinator does not evaluate it
    told = [func.current_setting(func.nullif(name, func.random().concat(""))) for name in names]
    async with engine.connect() as connection:
        model = await connection.scalar(select(inference.c.model))
        statement = select(*told).where(inference.c.model == model)
        settings = {"enable_nestloop": "off"}
        [[nestloop, timeout]] = await fetch(
            connection, statement, Deadline.after(30), settings=settings
        )
        assert nestloop == "off"
        assert timeout != "0"
