"""Which objects an erasure may delete: those that nothing else points to. Asked in the gate."""

from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import unquote
from uuid import UUID

from sqlalchemy import (
    ARRAY,
    ColumnElement,
    Select,
    Text,
    and_,
    any_,
    func,
    literal,
    or_,
    select,
    tuple_,
)
from sqlalchemy import UUID as UUID_TYPE
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index.identities import Identity, among, by_model, marked_by
from inference_store.index.tables import blob_reference, erasing, inference, registration
from inference_store.inference.events import StorageKey, parse_stored, uid_floor
from inference_store.inference.layout import around, capture_of, is_edited

from .marks import Mark, gate_exclusive

# Claimed sharers that are looked at in one piece: an object may have any number.
_SHARERS = 1000


@dataclass(frozen=True, slots=True)
class _Owner:
    """The capture that a key of our own layout belongs to."""

    model_id: str
    hour: datetime
    capture_id: UUID


async def after_edits(connection: AsyncConnection, page: Sequence[Mark]) -> None:
    """Wait for the edits of inferences whose marks were made without their rows' locks: one that is
    under way did not see them, and none begins that does not. Before the gate, for an edit takes it
    with the row locked."""
    for model, uids in by_model((mark.model, mark.uid) for mark in page):
        rows = select(inference.c.uid).where(among(inference, model, uids))
        await connection.execute(rows.order_by(inference.c.uid).with_for_update())


async def claim(connection: AsyncConnection, marks: Sequence[Mark]) -> frozenset[str]:
    """The storage keys of the marked objects that may be deleted now."""
    await gate_exclusive(connection)
    wanted = {key for mark in marks for key in mark.doomed}
    shared = await _referenced(connection, wanted)
    foreign = {key: owner for mark in marks for key, owner in _foreign(mark)}
    owned = await _owned(connection, foreign) if foreign else set()
    return frozenset(key for key in wanted if key not in shared and key not in owned)


async def still_shared(connection: AsyncConnection, keys: Iterable[str]) -> set[str]:
    """Those to which an inference points that is not going itself. In the gate."""
    return await _referenced(connection, keys)


async def sharing(
    connection: AsyncConnection, page: Sequence[Mark], *, limit: int = _SHARERS
) -> AsyncIterator[set[Identity]]:
    """Those that are claimed too, and point to an object of these marks, some at a time: if a hold
    keeps one of them, the object stays. With one that is not claimed it stays anyway."""
    own = {(mark.model, mark.uid) for mark in page}
    listed = any_(
        literal(sorted({key for mark in page for key in mark.doomed}), ARRAY(Text(collation="C")))
    )
    here = blob_reference.c
    claimed = select(erasing.c.uid).where(
        erasing.c.model == here.model,
        erasing.c.uid == here.uid,
        erasing.c.claimed_at.is_not(None),
    )
    place = (here.storage_key, here.model, here.uid)
    query = select(*place).where(here.storage_key == listed, claimed.exists())
    query = query.order_by(*place).limit(limit)
    some = query
    while rows := list(await connection.execute(some)):
        yield {(row.model, row.uid) for row in rows} - own
        some = query.where(tuple_(*place) > tuple_(*(literal(each) for each in rows[-1])))
    if owners := {owner for mark in page for _, owner in _foreign(mark)}:
        captured = await _captured(connection, owners, claimed=True)
        yield {(row.model, row.uid) for _, row in captured} - own


async def mark_claimed(connection: AsyncConnection, erasure: UUID, page: Sequence[Mark]) -> None:
    """Say that objects of these marks may be gone from now on: a hold that comes later tells so."""
    for model, uids in by_model((mark.model, mark.uid) for mark in page):
        fresh = erasing.update().where(
            marked_by(erasure, model, uids), erasing.c.claimed_at.is_(None)
        )
        await connection.execute(fresh.values(claimed_at=func.now()))


async def _referenced(connection: AsyncConnection, keys: Iterable[str]) -> set[str]:
    """Those that an inference points to which is not going itself. One that is marked and not
    claimed may stay: its erasure is cancelled, or a hold keeps it."""
    going = select(erasing.c.uid).where(
        erasing.c.claimed_at.is_not(None),
        erasing.c.model == blob_reference.c.model,
        erasing.c.uid == blob_reference.c.uid,
        or_(erasing.c.scope == "inference", *_of_a_part_alone()),
    )
    query = select(blob_reference.c.storage_key).distinct()
    listed = any_(literal(sorted(keys), ARRAY(Text(collation="C"))))
    query = query.where(blob_reference.c.storage_key == listed, ~going.exists())
    return set((await connection.execute(query)).scalars())


def _of_a_part_alone() -> Iterable[ColumnElement[bool]]:
    """The reference is to the part that is being erased, which is no other blob as well."""
    key, here = blob_reference.c.storage_key, erasing.c
    keys = {
        "input": here.data_storage_key,
        "response": here.response_storage_key,
        "metadata": here.metadata_storage_key,
    }
    for part in ("input", "response"):
        others = [column for name, column in keys.items() if name != part]
        yield and_(
            here.scope == part,
            keys[part] == key,
            *(column.is_distinct_from(key) for column in others),
        )


def _foreign(mark: Mark) -> Iterable[tuple[str, _Owner]]:
    """Keys of our own layout that name another capture, or another model, than the mark's.

    A capture's own keys need no reference row. So a stranger's event that points to them has to
    be told from their owner, or erasing the one would take the other's objects.
    """
    for key in mark.doomed:
        owner = _owner_of(parse_stored(key))
        if owner is not None and not mark.owns(key):
            yield key, owner


def _owner_of(key: StorageKey) -> _Owner | None:
    found = capture_of(key.key)
    if found is None:
        return None
    segment, hour, capture = found
    return _Owner(unquote(segment), hour, capture)


async def _owned(connection: AsyncConnection, foreign: Mapping[str, _Owner]) -> set[str]:
    """The keys whose capture is stored, claimed by no erasure, and not without this object."""
    rows: dict[_Owner, list[Any]] = defaultdict(list)
    for owner, row in await _captured(connection, set(foreign.values()), claimed=False):
        rows[owner].append(row)
    return {key for key, owner in foreign.items() if any(_has(row, key) for row in rows[owner])}


def _has(row: Any, key: str) -> bool:
    """Not a part that was erased, or is claimed: it stayed for the others. Nor, where its input was
    erased, the metadata blob that it left to others, see `own_metadata`."""
    parts = (
        (row.data_storage_key, row.input_gone),
        (row.response_storage_key, row.response_gone),
        (row.metadata_storage_key, False),
    )
    if any(named == key for named, _ in parts):
        return any(named == key and not is_gone for named, is_gone in parts)
    left = row.metadata_storage_key is not None and is_edited(row.metadata_storage_key)
    return not (left and key.endswith("/metadata"))


async def _captured(
    connection: AsyncConnection, owners: set[_Owner], *, claimed: bool
) -> list[tuple[_Owner, Any]]:
    """The rows of those captures: where something of them is claimed, or where not all of it is."""
    of_model: dict[str, list[_Owner]] = defaultdict(list)
    for owner in owners:
        of_model[owner.model_id].append(owner)
    query = select(registration.c.model_id, registration.c.model)
    query = query.where(registration.c.model_id.in_(set(of_model)))
    models = {row.model_id: row.model for row in await connection.execute(query)}
    found: list[tuple[_Owner, Any]] = []
    for model_id, model in sorted(models.items()):
        for lo, hi in around(owner.hour for owner in of_model[model_id]):
            # a stranger may name one capture under several hours: it is all of them
            near: dict[UUID, list[_Owner]] = defaultdict(list)
            for owner in of_model[model_id]:
                if lo <= owner.hour < hi:
                    near[owner.capture_id].append(owner)
            stored = _stored(model, lo, hi, list(near), claimed=claimed)
            for row in await connection.execute(stored):
                found += [(owner, row) for owner in near[row.capture_id]]
    return found


def _stored(
    model: int, lo: datetime, hi: datetime, captures: list[UUID], *, claimed: bool
) -> Select[Any]:
    here = inference.c
    claim = select(erasing.c.uid).where(
        erasing.c.model == here.model,
        erasing.c.uid == here.uid,
        erasing.c.claimed_at.is_not(None),
    )
    whole, of_input, of_response = (
        claim.where(erasing.c.scope == scope).exists()
        for scope in ("inference", "input", "response")
    )
    return select(
        *(here.capture_id, here.model, here.uid),
        *(here.data_storage_key, here.response_storage_key, here.metadata_storage_key),
        or_(here.data_deleted_at.is_not(None), of_input).label("input_gone"),
        or_(here.response_deleted_at.is_not(None), of_response).label("response_gone"),
    ).where(
        here.model == model,
        here.uid >= uid_floor(lo),
        here.uid < uid_floor(hi),
        here.capture_id == any_(literal(captures, ARRAY(UUID_TYPE(as_uuid=True)))),
        claim.exists() if claimed else ~whole,
    )
