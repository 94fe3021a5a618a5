"""Records what one batch of an erasure erased, for its certificate."""

from collections.abc import Iterable, Sequence, Set
from uuid import UUID

from sqlalchemy import ARRAY, Text, any_, literal, select
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.erasure.log.keys import SigningKey
from inference_store.erasure.mark.pending_deletions import PendingDeletion
from inference_store.erasure.progress.erasure import Erasure
from inference_store.index.tables import blob_reference, erasing
from inference_store.inference.events import parse_stored

from . import erased_lists


async def record_erased(
    connection: AsyncConnection,
    key: SigningKey,
    erasure: Erasure,
    done: Sequence[PendingDeletion],
    doomed: Set[str],
    *,
    whole_span: bool = False,
) -> None:
    """Record what a batch erased, after its rows and pending deletions. `doomed`: the claimed
    keys."""
    deleted = {key for mark in done for key in mark.doomed if key in doomed}
    foreign = {key for mark in done for key in mark.doomed if not mark.owns(key)}
    deleted -= await _find_still_named(connection, erasure.id, deleted & foreign)
    await erased_lists.record_batch(
        connection,
        key,
        erasure.id,
        scope=erasure.scope,
        uids=sorted(mark.uid for mark in done),
        objects=map(parse_stored, sorted(deleted)),
        whole_span=whole_span,
    )


async def _find_still_named(
    connection: AsyncConnection, erasure: UUID, keys: Iterable[str]
) -> set[str]:
    """Return the keys that a later batch of the erasure points to as well: that batch records
    them."""
    names = sorted(keys)
    if not names:
        return set()
    query = (
        select(blob_reference.c.storage_key)
        .join(
            erasing,
            (erasing.c.model == blob_reference.c.model) & (erasing.c.uid == blob_reference.c.uid),
        )
        .where(
            erasing.c.erasure == erasure,
            blob_reference.c.storage_key == any_(literal(names, ARRAY(Text(collation="C")))),
        )
    )
    return set((await connection.execute(query)).scalars())
