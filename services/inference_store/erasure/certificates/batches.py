"""What one batch of an erasure tells its certificate."""

from collections.abc import Iterable, Sequence, Set
from uuid import UUID

from sqlalchemy import ARRAY, Text, any_, literal, select
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.erasure.erasures import Erasure
from inference_store.erasure.mark.marks import Mark
from inference_store.index.tables import blob_reference, erasing
from inference_store.inference.events import parse_stored

from . import erased
from .keys import SigningKey


async def tell_batch(
    connection: AsyncConnection,
    key: SigningKey,
    one: Erasure,
    done: Sequence[Mark],
    doomed: Set[str],
    *,
    whole_span: bool = False,
) -> None:
    """Write down what went, after the batch's rows and marks. `doomed`: keys that were claimed."""
    gone = {key for mark in done for key in mark.doomed if key in doomed}
    strange = {key for mark in done for key in mark.doomed if not mark.owns(key)}
    gone -= await _still_named(connection, one.id, gone & strange)
    await erased.tell(
        connection,
        key,
        one.id,
        scope=one.scope,
        uids=sorted(mark.uid for mark in done),
        objects=map(parse_stored, sorted(gone)),
        whole_span=whole_span,
    )


async def _still_named(connection: AsyncConnection, erasure: UUID, keys: Iterable[str]) -> set[str]:
    """Those that a later batch of the same erasure points to as well: they are told with it."""
    wanted = sorted(keys)
    if not wanted:
        return set()
    query = (
        select(blob_reference.c.storage_key)
        .join(
            erasing,
            (erasing.c.model == blob_reference.c.model) & (erasing.c.uid == blob_reference.c.uid),
        )
        .where(
            erasing.c.erasure == erasure,
            blob_reference.c.storage_key == any_(literal(wanted, ARRAY(Text(collation="C")))),
        )
    )
    return set((await connection.execute(query)).scalars())
