"""Records in the lists of exports what a batch of an erasure erased.

It is done in the transaction that deletes the batch's rows: a crash neither loses it nor records it
twice. A part that has an object becomes `stale`: the object is deleted before the erasure ends.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from sqlalchemy import func, select, tuple_
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.export.jobs.members import UID_BYTES, unpack_uids
from inference_store.export.jobs.state_changes import recount, reopen_if_stale
from inference_store.index.inferences import Identity, by_model
from inference_store.index.tables import export_erased, export_part

_HERE = export_part.c
_PAGE: Final = 1000
_NOBODY: Final = UUID(int=0)


@dataclass(frozen=True, slots=True)
class EntryHash:
    """How a certificate hashes: the key's id, and the entry of a scope and a uid."""

    key_id: str
    hash_entry: Callable[[str, UUID], bytes]


@dataclass(frozen=True, slots=True)
class ErasedBatch:
    """What a batch erased; `entry_hash` None: no key signs certificates."""

    erasure: UUID
    scope: str
    entry_hash: EntryHash | None


async def record_batch(
    connection: AsyncConnection, batch: ErasedBatch, identities: Iterable[Identity]
) -> None:
    """Take these inferences out of the lists that name them (scope inference), and record it.

    Of a model without exports it is one query by an index. A list is read at a time.
    """
    touched: set[UUID] = set()
    for model, uids in by_model(identities):
        after = (_NOBODY, -1)
        while page := await _read_bounds(connection, model, uids, after):
            for row in page:
                at = bisect_left(uids, row.first)
                is_near = at < len(uids) and uids[at] <= row.last
                if is_near and await _record_part(connection, batch, row.export, row.number, uids):
                    touched.add(row.export)
            after = page[-1].export, page[-1].number
    for export in sorted(touched):
        # first what locks the job: a leader that was frozen may be ending it just now
        await recount(connection, export)
        await reopen_if_stale(connection, export)


async def _read_bounds(
    connection: AsyncConnection, model: int, uids: Sequence[UUID], after: tuple[UUID, int]
) -> Sequence[Any]:
    """Return the next parts of a model that may name some of the uids, which are sorted."""
    order = (_HERE.export, _HERE.number)
    query = select(*order, _HERE.first, _HERE.last).where(
        _HERE.model == model,
        _HERE.first <= uids[-1],
        _HERE.last >= uids[0],
        tuple_(*order) > tuple_(*after),
    )
    return (await connection.execute(query.order_by(*order).limit(_PAGE))).all()


async def _record_part(
    connection: AsyncConnection,
    batch: ErasedBatch,
    export: UUID,
    number: int,
    uids: Sequence[UUID],
) -> bool:
    """Record what a part names; False: none of it. Its row is locked before that: nobody is given a
    link to it meanwhile."""
    here = (_HERE.export == export, _HERE.number == number)
    columns = (_HERE.uids, _HERE.storage_key, _HERE.state, _HERE.rows, _HERE.gone)
    row = (await connection.execute(select(*columns).where(*here).with_for_update())).one()
    rest, taken = take_uids(bytes(row.uids), {uid.bytes for uid in uids})
    if not taken:
        return False
    changed = export_part.update().where(*here)
    await connection.execute(changed.values(_change_part(row, batch.scope, rest)))
    hashing = batch.entry_hash
    erased = {
        "export": export,
        "part": number,
        "erasure": batch.erasure,
        "scope": batch.scope,
        "inferences": len(taken) // UID_BYTES,
        "uids": taken,
        "leaves": None if hashing is None else _hash_uids(hashing, batch.scope, taken),
        "hashed_by": None if hashing is None else hashing.key_id,
        "storage_key": row.storage_key,
        # not when the transaction began: whoever was given a link before this lock came earlier
        "erased_at": func.clock_timestamp(),
    }
    await connection.execute(export_erased.insert().values(erased))
    return True


def _change_part(row: Any, scope: str, rest: bytes) -> dict[str, Any]:
    """Return the new columns of a part. `rest`: its list without what was erased."""
    listed, gone = len(row.uids) // UID_BYTES, row.gone
    if row.state == "written":
        # counted when it was written, as the next writing will: erasures had marked them
        gone -= listed - row.rows
    values: dict[str, Any] = {"state": row.state if row.storage_key is None else "stale"}
    if scope == "inference":
        gone += listed - len(rest) // UID_BYTES
        values |= {"uids": rest, **_find_bounds(rest)}
    return values | {"gone": gone}


def _find_bounds(uid_list: bytes) -> dict[str, UUID]:
    """Return the first and the last uid of a list; an erased one is neither."""
    if not uid_list:
        return {"first": _NOBODY, "last": _NOBODY}
    first, last = uid_list[:UID_BYTES], uid_list[-UID_BYTES:]
    return {"first": UUID(bytes=first), "last": UUID(bytes=last)}


def _hash_uids(hashing: EntryHash, scope: str, uid_list: bytes) -> bytes:
    return b"".join(hashing.hash_entry(scope, uid) for uid in unpack_uids(uid_list))


def take_uids(uid_list: bytes, doomed: Set[bytes]) -> tuple[bytes, bytes]:
    """Split a list in two: the uids that stay, and those among `doomed` (16 bytes each).

    Raises ValueError if the last uid is incomplete.
    """
    if len(uid_list) % UID_BYTES:
        raise ValueError(f"{len(uid_list)} bytes are no whole number of uids")
    uids = [uid_list[at : at + UID_BYTES] for at in range(0, len(uid_list), UID_BYTES)]
    rest = b"".join(packed for packed in uids if packed not in doomed)
    return rest, b"".join(packed for packed in uids if packed in doomed)
