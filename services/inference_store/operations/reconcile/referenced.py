"""The objects that several inferences may point to, in the order of their keys: an index has it."""

from collections.abc import Sequence

from sqlalchemy import func, select
from sqlalchemy.dialects.postgresql import distinct_on
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index.tables import blob_reference

from .bucket_prefixes import BucketPrefix
from .owned import Named


async def page(
    connection: AsyncConnection, place: BucketPrefix, *, after: str, limit: int
) -> Sequence[Named]:
    """The first storage keys of a place behind `after`, each with one that points to it.

    Fewer than `limit`: there are no more.
    """
    here = blob_reference.c
    query = (
        select(here.storage_key, func.min(here.model).label("model"))
        .where(here.storage_key > max(after, place.first), here.storage_key < place.end)
        .group_by(here.storage_key)
        .order_by(here.storage_key)
        .limit(limit)
    )
    first = query.subquery()
    owners = (
        select(here.storage_key, here.model, here.uid)
        .join(first, (first.c.storage_key == here.storage_key) & (first.c.model == here.model))
        .ext(distinct_on(here.storage_key))
        .order_by(here.storage_key, here.uid)
    )
    return [Named(*row) for row in await connection.execute(owners)]
