"""Restores ground truth from its documents in the bucket, for a rebuild of the index.

The newest document of an inference and a source counts. Older ones were about to be deleted when
the index was lost: they are queued again. Of what was erased nothing comes back.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.erasure.pending_deletions import enqueue_superseded, list_erased
from inference_store.index import registrations
from inference_store.index.sidecars import among
from inference_store.index.tables import blob_reference, truth_set
from inference_store.inference.events import StorageKey

from .documents import decode_document, hash_content
from .sets import Key, NewRow, TruthWriter, delete_rows, lock_inferences

NOT_STORED = "its inference is not stored"


@dataclass(slots=True)
class Restoring:
    """The documents of a page, read: by model. `unreadable`: those that are none, and why."""

    rows: defaultdict[int, list[NewRow]] = field(default_factory=lambda: defaultdict(list))
    names: dict[int, set[str]] = field(default_factory=dict)
    unreadable: list[tuple[StorageKey, str]] = field(default_factory=list)


async def read_documents(
    writer: TruthWriter, documents: Sequence[tuple[StorageKey, bytes | None]]
) -> Restoring:
    """Read documents, and give their labels integers. `None`: it was too large to be read."""
    restoring = Restoring()
    rows: defaultdict[str, list[NewRow]] = defaultdict(list)
    for place, data in documents:
        try:
            one, about = decode_document(data or b"")
            at, key = datetime.fromisoformat(about["at"]), (UUID(about["uid"]), one.source)
            revision, by = int(about["revision"]), str(about["by"])
            row = NewRow(key, one, revision, hash_content(one.content), str(place), by, at)
            rows[about["model_id"]].append(row)
        except (ValueError, KeyError, TypeError, ArithmeticError) as wrong:
            restoring.unreadable.append((place, f"it is no ground truth: {wrong}"))
    async with writer.engine.connect() as connection:
        models = await registrations.find_by_ids(connection, set(rows))
    for model_id, of_model in rows.items():
        if (registration := models.get(model_id)) is None:
            places = [StorageKey(*row.place[5:].split("/", 1)) for row in of_model]
            restoring.unreadable += [(place, NOT_STORED) for place in places]
            continue
        model = registration.model
        restoring.rows[model] = of_model
        restoring.names |= await writer.resolve(model, [row.set for row in of_model])
    return restoring


async def restore(
    connection: AsyncConnection, writer: TruthWriter, restoring: Restoring
) -> tuple[Counter[str], list[tuple[StorageKey, str]]] | None:
    """Write the sets; return how many, and the documents of which nothing is stored, with the
    reason. None: a name was removed meanwhile, and the page is to be read again."""
    counts: Counter[str] = Counter()
    left = list(restoring.unreadable)
    for model, rows in sorted(restoring.rows.items()):
        if not await writer.hold_names(connection, model, restoring.names):
            return None
        uids = {row.key[0] for row in rows}
        gone = await lock_inferences(connection, model, uids)
        erased = await list_erased(connection, model, sorted(gone)) if gone else set()
        for row in rows:
            if row.key[0] in gone - erased:
                left.append((StorageKey(*row.place[5:].split("/", 1)), NOT_STORED))
        counts["truth_erased"] += sum(row.key[0] in erased for row in rows)
        counts += await _restore(
            connection, writer, model, [r for r in rows if r.key[0] not in gone]
        )
    return +counts, left


async def _restore(
    connection: AsyncConnection, writer: TruthWriter, model: int, rows: Sequence[NewRow]
) -> Counter[str]:
    if not rows:
        return Counter()
    here, uids = truth_set.c, sorted({row.key[0] for row in rows})
    query = select(here.uid, here.source, here.at, here.storage_key)
    stored = await connection.execute(query.where(among(truth_set, model, uids)))
    before = {(row.uid, row.source): (row.at, row.storage_key) for row in stored}
    newest: dict[Key, NewRow] = {}
    for row in sorted(rows, key=lambda row: (row.at, row.revision)):
        newest[row.key] = row
    new = [row for row in newest.values() if row.key not in before or before[row.key][0] < row.at]
    await delete_rows(connection, model, [row.key for row in new if row.key in before])
    await writer.copy(connection, model, new)
    references = [{"storage_key": row.place, "model": model, "uid": row.key[0]} for row in rows]
    await connection.execute(insert(blob_reference).on_conflict_do_nothing(), references)
    current = {place for _, place in before.values()} | {row.place for row in new}
    old = {row.key[0] for row in rows if row.place not in current}
    old |= {row.key[0] for row in new if row.key in before}
    await enqueue_superseded(connection, model, sorted(old))
    return Counter(truth_rebuilt=len(new), truth_present=len(newest) - len(new))
