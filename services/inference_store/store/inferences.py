"""Which inferences are stored."""

from collections.abc import Iterable
from typing import Literal, TypeAlias
from uuid import UUID

from sqlalchemy import or_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from .retention.identities import Identity, among, by_model
from .tables import inference

_KEYS = (
    inference.c.data_storage_key,
    inference.c.response_storage_key,
    inference.c.metadata_storage_key,
)
Part: TypeAlias = Literal["input", "response"]


async def stored(
    connection: AsyncConnection, identities: Iterable[tuple[int, UUID]]
) -> set[tuple[int, UUID]]:
    """Those of the given (model, uid) that are stored."""
    found: set[tuple[int, UUID]] = set()
    for model, uids in by_model(identities):
        query = select(inference.c.uid).where(among(inference, model, uids))
        rows = await connection.execute(query)
        found |= {(model, uid) for uid in rows.scalars()}
    return found


async def without_parts(
    connection: AsyncConnection, identities: Iterable[Identity]
) -> dict[tuple[Identity, Part], set[str | None]]:
    """Those of which the input or the response has been erased, each with the objects that it has
    beside that part."""
    found: dict[tuple[Identity, Part], set[str | None]] = {}
    here = inference.c
    columns = (here.uid, here.data_deleted_at, here.response_deleted_at, *_KEYS)
    gone = or_(here.data_deleted_at.is_not(None), here.response_deleted_at.is_not(None))
    for model, uids in by_model(identities):
        query = select(*columns).where(among(inference, model, uids), gone)
        for uid, input_gone, response_gone, *keys in await connection.execute(query):
            data, response, metadata = keys
            if input_gone is not None:
                found[(model, uid), "input"] = {response, metadata}
            if response_gone is not None:
                found[(model, uid), "response"] = {data, metadata}
    return found
