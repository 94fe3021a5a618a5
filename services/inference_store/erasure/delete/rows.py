"""Deletes the rows of what was erased: all of a batch in one transaction."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import ARRAY, ColumnElement, func, literal, select
from sqlalchemy import UUID as UUID_TYPE
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.erasure import audit_chain
from inference_store.erasure.mark import tombstones
from inference_store.erasure.mark.pending_deletions import PendingDeletion, remove_pending
from inference_store.erasure.progress.erasure import Erasure
from inference_store.erasure.progress.state_changes import add_erased
from inference_store.index.inferences import among, by_model
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


async def delete_rows(
    connection: AsyncConnection,
    stored_erasure: Erasure,
    done: Sequence[PendingDeletion],
    *,
    objects: int,
    versions: int = 0,
    bytes: int = 0,
    whole_span: bool = False,
) -> int:
    """Delete the rows and the marks of what is erased, count them, and return how many marks.

    `versions` and `bytes` went with the objects; if `bytes` is 0, the sizes in the rows count.
    `whole_span`: the partitions are about to be dropped. Then only the parents' rows are deleted,
    which show the progress; what they were is recorded as a list, not by tombstones.
    """
    erased: dict[int, int] = {}
    deleted_bytes = bytes
    deleted_rows: Counter[str] = Counter()
    for model, uids in by_model((mark.model, mark.uid) for mark in done):
        deleted_bytes += await _sum_bytes(connection, model, uids) if objects and not bytes else 0
        if stored_erasure.scope == "input":
            await delete_inputs(connection, model, uids)
        elif stored_erasure.scope == "response":
            await _delete_responses(connection, model, uids)
        else:
            deleted_rows += await _delete_inferences(
                connection, stored_erasure, model, uids, whole_span=whole_span
            )
        erased[model] = await remove_pending(connection, stored_erasure.id, model, uids)
    total = sum(erased.values())
    uids_done = [mark.uid for mark in done]
    await add_erased(
        connection,
        stored_erasure.id,
        inferences=total,
        objects=objects,
        versions=versions,
        bytes=deleted_bytes,
        table_rows=deleted_rows,
        received=(received_at_of(min(uids_done)), received_at_of(max(uids_done))),
        by_model=erased,
    )
    if deleted_rows[inference.name]:
        total_inferences = erased_total.c.inferences + deleted_rows[inference.name]
        await connection.execute(erased_total.update().values(inferences=total_inferences))
    if stored_erasure.run is not None:
        column = retention_run.c[f"{stored_erasure.scope}s_deleted"]
        counted = retention_run.update().where(retention_run.c.id == stored_erasure.run)
        await connection.execute(counted.values({column: column + total}))
    return total


async def _sum_bytes(connection: AsyncConnection, model: int, uids: Sequence[UUID]) -> int:
    here = inference.c
    size = func.sum(here.data_size)
    return int(await connection.scalar(select(size).where(among(inference, model, uids))) or 0)


async def _delete_inferences(
    connection: AsyncConnection,
    stored_erasure: Erasure,
    model: int,
    uids: Sequence[UUID],
    *,
    whole_span: bool,
) -> Counter[str]:
    """Delete inferences with what the audit says of them; return how many rows of which table."""
    counts: Counter[str] = Counter()
    tables = (inference,) if whole_span else tuple(reversed(PARTITIONED))
    for table in (*tables, blob_reference):
        deleted = await connection.execute(table.delete().where(among(table, model, uids)))
        counts[table.name] = deleted.rowcount
    counts["audit"] = await audit_chain.redact_values(connection, stored_erasure.id, uids=uids)
    if whole_span:
        await tombstones.add_batch(connection, model, uids)
    # What expired before it was stored has left nothing that could come back.
    elif stored_erasure.cause != "expired_arrival":
        # one statement and one array: a row each costs more than all that is deleted
        uid = func.unnest(literal(list(uids), ARRAY(UUID_TYPE(as_uuid=True))))
        columns = ("model", "uid", "erased_at")
        # the time is selected, so that on Citus it is the coordinator's, which orders holds too
        inserted = insert(tombstone).from_select(columns, select(literal(model), uid, func.now()))
        newer = {"erased_at": inserted.excluded.erased_at}
        await connection.execute(
            inserted.on_conflict_do_update(index_elements=["model", "uid"], set_=newer)
        )
    return +counts


async def delete_inputs(connection: AsyncConnection, model: int, uids: Sequence[UUID]) -> None:
    """Record on the rows that the inputs are deleted, and remove their prompts. The rest stays."""
    here = inference.c
    others = (here.response_storage_key, here.metadata_storage_key)
    await _delete_references(connection, model, uids, here.data_storage_key, others)
    prompts = prediction.update().where(
        among(prediction, model, uids), prediction.c.prompt.is_not(None)
    )
    await connection.execute(prompts.values(prompt=None))
    marked = inference.update().where(among(inference, model, uids), here.data_deleted_at.is_(None))
    await connection.execute(marked.values(data_deleted_at=func.now()))


async def _delete_responses(connection: AsyncConnection, model: int, uids: Sequence[UUID]) -> None:
    """Record on the rows that the responses are deleted. What was read from them stays."""
    here = inference.c
    others = (here.data_storage_key, here.metadata_storage_key)
    await _delete_references(connection, model, uids, here.response_storage_key, others)
    marked = inference.update().where(
        among(inference, model, uids), here.response_deleted_at.is_(None)
    )
    await connection.execute(marked.values(response_deleted_at=func.now()))


async def _delete_references(
    connection: AsyncConnection,
    model: int,
    uids: Sequence[UUID],
    key: ColumnElement[Any],
    others: Iterable[ColumnElement[Any]],
) -> None:
    """Delete the references to what inferences point to by this key, and by no other."""
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
