"""Deletes the rows of what was erased, all of a batch in one transaction, and separates shared
metadata.

Our own producers' metadata blob holds the request, so an erasure of the input writes it again
without the request. If others point to it too, it does not change, because a hold may protect
them: the inference gets a blob of its own, and the shared one stays until the last of the others
goes.

The order is: point to the new key, and commit (`reserve_keys`, with the claim) · write it ·
`repoint_rows` with the rows. After a crash the mark is there, and all is done again; in any case
the new blob goes with the inference. No edit comes between: it waits for the mark.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TypeAlias
from uuid import UUID

from sqlalchemy import ARRAY, func, literal, select
from sqlalchemy import UUID as UUID_TYPE
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.erasure import audit_chain
from inference_store.erasure.mark import tombstones
from inference_store.erasure.mark.claims import find_referenced
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
from inference_store.inference.events import StorageKey, received_at_of
from inference_store.inference.layout import edited_key

from .mark.pending_deletions import PendingDeletion, remove_pending
from .progress import Erasure, add_erased

Moves: TypeAlias = Mapping[str, str | None]
"""The new key by the old one; None: the inference has left the old one before."""


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
        if stored_erasure.scope != "inference":
            await delete_part(connection, model, uids, stored_erasure.scope)
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


async def delete_part(
    connection: AsyncConnection, model: int, uids: Sequence[UUID], part: str
) -> None:
    """Record on the rows that the inputs, with their prompts, or the responses are deleted.

    What was read from them stays. References go to what inferences point to by this key alone.
    """
    here = inference.c
    keys = {
        "input": here.data_storage_key,
        "response": here.response_storage_key,
        "metadata": here.metadata_storage_key,
    }
    key = keys.pop(part)
    own = select(key).where(
        among(inference, model, uids),
        here.uid == blob_reference.c.uid,
        *(key.is_distinct_from(other) for other in keys.values()),
    )
    references = blob_reference.delete().where(among(blob_reference, model, uids))
    await connection.execute(references.where(blob_reference.c.storage_key.in_(own)))
    if part == "input":
        prompts = prediction.update().where(
            among(prediction, model, uids), prediction.c.prompt.is_not(None)
        )
        await connection.execute(prompts.values(prompt=None))
    at = here.data_deleted_at if part == "input" else here.response_deleted_at
    marked = inference.update().where(among(inference, model, uids), at.is_(None))
    await connection.execute(marked.values({at: func.now()}))


async def reserve_keys(
    connection: AsyncConnection, page: Sequence[PendingDeletion], bucket: str
) -> Moves:
    """Point each mark to a new metadata blob if others point to its own one. Call it in the
    fence."""
    own = {
        mark.metadata: mark
        for mark in page
        if mark.scope == "input" and mark.metadata is not None and mark.owns(mark.metadata)
    }
    shared = await find_referenced(connection, own) if own else set()
    current = await _find_metadata(connection, [own[key] for key in shared])
    moves: dict[str, str | None] = {}
    for key in sorted(shared):
        mark = own[key]
        new = str(StorageKey(bucket, edited_key(mark.model_id or "", mark.uid)))
        moves[key] = new if (mark.model, key) in current else None
    rows = [
        {"storage_key": new, "model": own[old].model, "uid": own[old].uid}
        for old, new in moves.items()
        if new is not None
    ]
    if rows:
        await connection.execute(insert(blob_reference).on_conflict_do_nothing(), rows)
    return moves


async def repoint_rows(
    connection: AsyncConnection, done: Sequence[PendingDeletion], moves: Moves
) -> None:
    """Write the new keys of the metadata to the rows. Repeatable."""
    here = inference.c
    for mark in done:
        if mark.metadata is None or (new := moves.get(mark.metadata)) is None:
            continue
        where = (here.model == mark.model, here.uid == mark.uid)
        old = here.metadata_storage_key == mark.metadata
        await connection.execute(
            inference.update().where(*where, old).values(metadata_storage_key=new)
        )


async def _find_metadata(
    connection: AsyncConnection, page: Sequence[PendingDeletion]
) -> set[tuple[int, str | None]]:
    keys: set[tuple[int, str | None]] = set()
    for model, uids in by_model((mark.model, mark.uid) for mark in page):
        query = select(inference.c.metadata_storage_key).where(among(inference, model, uids))
        keys |= {(model, key) for key in (await connection.execute(query)).scalars()}
    return keys
