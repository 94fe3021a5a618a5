"""Which inferences are stored."""

from collections.abc import Iterable
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from .retention.identities import among, by_model
from .tables import inference


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
