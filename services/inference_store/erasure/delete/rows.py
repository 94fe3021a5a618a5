"""Deleting the rows of what has been erased: all of a batch in one transaction."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import ARRAY, ColumnElement, func, literal, select
from sqlalchemy import UUID as UUID_TYPE
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.erasure import audit_chain, erasures
from inference_store.erasure.erasures import Erasure
from inference_store.erasure.mark import marks, tombstones
from inference_store.erasure.mark.marks import Mark
from inference_store.index.identities import among, by_model
from inference_store.index.tables import (
    PARTITIONED,
    blob_reference,
    erased_total,
    inference,
    prediction,
    retention_run,
    tombstone,
)
from inference_store.inference.events import received_at_of


async def forget(
    connection: AsyncConnection,
    one: Erasure,
    done: Sequence[Mark],
    *,
    objects: int,
    versions: int = 0,
    bytes: int = 0,
    whole_span: bool = False,
) -> int:
    """Delete the rows and the marks of what is erased, and count them; how many marks.

    `versions` and `bytes` went with the objects; 0 bytes: what the rows say of their data counts.
    `whole_span`: their partitions are about to be dropped, so only the parents' rows go, which
    say how far it is; what they were is remembered as a list, not by tombstones.
    """
    erased: dict[int, int] = {}
    said = bytes
    gone: Counter[str] = Counter()
    for model, uids in by_model((mark.model, mark.uid) for mark in done):
        said += await _bytes_of(connection, model, uids) if objects and not bytes else 0
        if one.scope == "input":
            await forget_inputs(connection, model, uids)
        elif one.scope == "response":
            await _forget_responses(connection, model, uids)
        else:
            gone += await _forget_inferences(connection, one, model, uids, whole_span=whole_span)
        erased[model] = await marks.remove(connection, one.id, model, uids)
    total = sum(erased.values())
    named = [mark.uid for mark in done]
    await erasures.count(
        connection,
        one.id,
        inferences=total,
        objects=objects,
        versions=versions,
        bytes=said,
        table_rows=gone,
        received=(received_at_of(min(named)), received_at_of(max(named))),
        by_model=erased,
    )
    if gone[inference.name]:
        more = erased_total.c.inferences + gone[inference.name]
        await connection.execute(erased_total.update().values(inferences=more))
    if one.run is not None:
        column = retention_run.c[f"{one.scope}s_deleted"]
        counted = retention_run.update().where(retention_run.c.id == one.run)
        await connection.execute(counted.values({column: column + total}))
    return total


async def _bytes_of(connection: AsyncConnection, model: int, uids: Sequence[UUID]) -> int:
    here = inference.c
    known = func.sum(func.coalesce(here.stored_bytes, here.data_size))
    return int(await connection.scalar(select(known).where(among(inference, model, uids))) or 0)


async def _forget_inferences(
    connection: AsyncConnection, one: Erasure, model: int, uids: Sequence[UUID], *, whole_span: bool
) -> Counter[str]:
    """How many rows of which table went. What was audited of them goes too."""
    gone: Counter[str] = Counter()
    tables = (inference,) if whole_span else tuple(reversed(PARTITIONED))
    for table in (*tables, blob_reference):
        deleted = await connection.execute(table.delete().where(among(table, model, uids)))
        gone[table.name] = deleted.rowcount
    gone["audit"] = await audit_chain.forget(connection, one.id, uids=uids)
    if whole_span:
        await tombstones.add_batch(connection, model, uids)
    # What expired before it was ever stored has left nothing that could come back.
    elif one.cause != "expired_arrival":
        # one statement and one array: a row each costs more than all that is deleted
        each = func.unnest(literal(list(uids), ARRAY(UUID_TYPE(as_uuid=True))))
        columns = ("model", "uid", "erased_at")
        # the time is selected, so that on Citus it is the coordinator's, which orders holds too
        made = insert(tombstone).from_select(columns, select(literal(model), each, func.now()))
        again = {"erased_at": made.excluded.erased_at}
        await connection.execute(
            made.on_conflict_do_update(index_elements=["model", "uid"], set_=again)
        )
    return +gone


async def forget_inputs(connection: AsyncConnection, model: int, uids: Sequence[UUID]) -> None:
    """The datum is gone: said on the row, and its prompts with it. The rest stays."""
    here = inference.c
    others = (here.response_storage_key, here.metadata_storage_key)
    await _forget_reference(connection, model, uids, here.data_storage_key, others)
    asked = prediction.update().where(
        among(prediction, model, uids), prediction.c.prompt.is_not(None)
    )
    await connection.execute(asked.values(prompt=None))
    gone = inference.update().where(among(inference, model, uids), here.data_deleted_at.is_(None))
    await connection.execute(gone.values(data_deleted_at=func.now()))


async def _forget_responses(connection: AsyncConnection, model: int, uids: Sequence[UUID]) -> None:
    """The response's blob is gone: said on the row. What was read from it stays."""
    here = inference.c
    others = (here.data_storage_key, here.metadata_storage_key)
    await _forget_reference(connection, model, uids, here.response_storage_key, others)
    gone = inference.update().where(
        among(inference, model, uids), here.response_deleted_at.is_(None)
    )
    await connection.execute(gone.values(response_deleted_at=func.now()))


async def _forget_reference(
    connection: AsyncConnection,
    model: int,
    uids: Sequence[UUID],
    key: ColumnElement[Any],
    others: Iterable[ColumnElement[Any]],
) -> None:
    """What they point to by this key, and by no other."""
    keys = select(key).where(
        among(inference, model, uids),
        inference.c.uid == blob_reference.c.uid,
        *(key.is_distinct_from(other) for other in others),
    )
    await connection.execute(
        blob_reference.delete().where(
            among(blob_reference, model, uids), blob_reference.c.storage_key.in_(keys)
        )
    )
