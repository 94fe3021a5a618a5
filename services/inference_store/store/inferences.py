"""Which inferences are stored."""

from collections.abc import Iterable
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from .tables import inference


async def stored(
    connection: AsyncConnection, identities: Iterable[tuple[int, UUID]]
) -> set[tuple[int, UUID]]:
    """Those of the given (model, uid) that are stored."""
    by_model: dict[int, list[UUID]] = {}
    for model, uid in identities:
        by_model.setdefault(model, []).append(uid)
    found: set[tuple[int, UUID]] = set()
    for model, uids in sorted(by_model.items()):
        query = select(inference.c.uid).where(inference.c.model == model)
        rows = await connection.execute(query.where(inference.c.uid.in_(uids)))
        found |= {(model, uid) for uid in rows.scalars()}
    return found
