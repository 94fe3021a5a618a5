"""The integers of models that are not registered: those that were, and those that are expected.

Whoever registers a model looks here first, under a share of the lock that `reserve` takes: so a
model that is registered at the same moment has the integer that was reserved.
"""

from collections.abc import Collection

from sqlalchemy import func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from .tables import former_model, registration

_LOCK = 7_302_030


async def former(
    connection: AsyncConnection, model_ids: Collection[str]
) -> dict[str, dict[str, int]]:
    """The integers that these models are to be registered with."""
    if not model_ids:
        return {}
    await connection.execute(select(func.pg_advisory_xact_lock_shared(_LOCK)))
    query = select(former_model).where(former_model.c.model_id.in_(sorted(model_ids)))
    return {row.model_id: {"model": row.model} for row in await connection.execute(query)}


async def number_of(connection: AsyncConnection, model_id: str) -> int | None:
    """The integer of a model, registered or not; None: it has none."""
    for table in (registration, former_model):
        query = select(table.c.model).where(table.c.model_id == model_id)
        found = await connection.scalar(query)
        if found is not None:
            return int(found)
    return None


async def reserve(connection: AsyncConnection, model_id: str) -> int:
    """The integer of a model; one that is not registered gets one, with which it will be."""
    found = await number_of(connection, model_id)
    if found is not None:
        return found
    await connection.execute(select(func.pg_advisory_xact_lock(_LOCK)))
    found = await number_of(connection, model_id)
    if found is not None:
        return found
    number = func.nextval(func.pg_get_serial_sequence(registration.name, "model"))
    made = insert(former_model).values(model_id=model_id, model=number)
    return int((await connection.execute(made.returning(former_model.c.model))).scalar_one())


async def names(connection: AsyncConnection, models: Collection[int]) -> dict[int, str]:
    """The ids of models by their integers, registered or not."""
    found: dict[int, str] = {}
    for table in (former_model, registration):
        query = select(table.c.model, table.c.model_id).where(table.c.model.in_(sorted(models)))
        found |= {row.model: row.model_id for row in await connection.execute(query)}
    return found
