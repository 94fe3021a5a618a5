"""The objects that several inferences may use, in the order of their keys, from an index."""

from collections.abc import Sequence

from sqlalchemy import func, select
from sqlalchemy.dialects.postgresql import distinct_on
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index.tables import blob_reference

from .bucket_prefixes import BucketPrefix
from .owned_objects import Named


async def find_page(
    connection: AsyncConnection, prefix: BucketPrefix, *, after: str, limit: int
) -> Sequence[Named]:
    """Return the first storage keys of a prefix after `after`, each with one inference that uses
    it.

    Fewer than `limit`: there are no more.
    """
    here = blob_reference.c
    query = (
        select(here.storage_key, func.min(here.model).label("model"))
        .where(here.storage_key > max(after, prefix.first), here.storage_key < prefix.end)
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
