"""The integers of models that are not registered: former ones, and expected ones.

Every registration looks here first, under a share of the lock that `reserve` takes. So a model that
is registered at the same moment gets the reserved integer.
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
    """Return the integers with which these models must be registered."""
    if not model_ids:
        return {}
    await connection.execute(select(func.pg_advisory_xact_lock_shared(_LOCK)))
    query = select(former_model).where(former_model.c.model_id.in_(sorted(model_ids)))
    return {row.model_id: {"model": row.model} for row in await connection.execute(query)}


async def number_of(connection: AsyncConnection, model_id: str) -> int | None:
    """Return the integer of a model, registered or not; None: it has none."""
    for table in (registration, former_model):
        query = select(table.c.model).where(table.c.model_id == model_id)
        number = await connection.scalar(query)
        if number is not None:
            return int(number)
    return None


async def reserve(connection: AsyncConnection, model_id: str) -> int:
    """Return the integer of a model; reserve one if the model is not registered."""
    existing = await number_of(connection, model_id)
    if existing is not None:
        return existing
    await connection.execute(select(func.pg_advisory_xact_lock(_LOCK)))
    existing = await number_of(connection, model_id)
    if existing is not None:
        return existing
    number = func.nextval(func.pg_get_serial_sequence(registration.name, "model"))
    inserted = insert(former_model).values(model_id=model_id, model=number)
    return int((await connection.execute(inserted.returning(former_model.c.model))).scalar_one())


async def names(connection: AsyncConnection, models: Collection[int | None]) -> dict[int, str]:
    """Return the ids of models by their integers, registered or not."""
    model_ids: dict[int, str] = {}
    numbers = sorted({model for model in models if model is not None})
    for table in (former_model, registration):
        query = select(table.c.model, table.c.model_id).where(table.c.model.in_(numbers))
        model_ids |= {row.model: row.model_id for row in await connection.execute(query)}
    return model_ids
