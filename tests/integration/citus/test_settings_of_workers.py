"""The settings of a transaction for planning and time also apply on its workers."""

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.index.tables import inference
from inference_store.query.deadline import Deadline, fetch
from tests.integration.stored_inferences import NewInference, at, store
from tests.servers.marks import on_citus


@on_citus
async def test_settings_of_a_statement_reach_the_workers(engine: AsyncEngine) -> None:
    await store(engine, NewInference("a1", at(1), [], []))
    names = ("enable_nestloop", "statement_timeout")
    # The argument is volatile, so that the coordinator does not evaluate it.
    settings_columns = [
        func.current_setting(func.nullif(name, func.random().concat(""))) for name in names
    ]
    async with engine.connect() as connection:
        model = await connection.scalar(select(inference.c.model))
        statement = select(*settings_columns).where(inference.c.model == model)
        settings = {"enable_nestloop": "off"}
        [[nestloop, timeout]] = await fetch(
            connection, statement, Deadline.after(30), settings=settings
        )
        assert nestloop == "off"
        assert timeout != "0"
