"""Finds the objects that an erasure may delete: those that nothing else points to. In the fence.

The same holds for a member of a segment, and a stranger's mark never deletes one that a stored
inference owns.
"""

from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import (
    ARRAY,
    ColumnElement,
    Select,
    and_,
    any_,
    func,
    literal,
    literal_column,
    or_,
    select,
    text,
    tuple_,
)
from sqlalchemy import UUID as UUID_TYPE
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.erasure import pending_deletions
from inference_store.erasure.locks import fence_exclusive
from inference_store.erasure.pending_deletions import KEYS, PendingDeletion
from inference_store.index import registrations
from inference_store.index.sidecars import Identity, among, among_keys, by_model, marked_by
from inference_store.index.tables import (
    blob_reference,
    erasing,
    inference,
    registration,
    segment,
)
from inference_store.inference.events import StorageKey, parse_stored, uid_floor
from inference_store.inference.layout import (
    around,
    capture_of,
    is_edited,
    is_packed_in,
    is_truth,
    member_of,
    segment_of_key,
)

# Claimed sharers in one page: an object may have any number.
_SHARERS = 1000


@dataclass(frozen=True, slots=True)
class _Owner:
    model_id: str
    hour: datetime
    capture_id: UUID


async def wait_for_edits(connection: AsyncConnection, page: Sequence[PendingDeletion]) -> None:
    """Wait for the edits of inferences whose marks were made without a lock on their rows.

    An edit that is under way did not see the marks, and no other edit begins without seeing them.
    Call it before the fence, because an edit takes the fence with the row locked.
    """
    for model, uids in by_model((mark.model, mark.uid) for mark in page):
        rows = select(inference.c.uid).where(among(inference, model, uids))
        await connection.execute(rows.order_by(inference.c.uid).with_for_update())


async def claim_objects(
    connection: AsyncConnection, marks: Sequence[PendingDeletion]
) -> frozenset[str]:
    """Return the storage keys of the marked objects that may be deleted now."""
    await fence_exclusive(connection)
    doomed = {key for mark in marks for key in mark.doomed}
    # truth is of one inference alone
    shared = await find_referenced(connection, (key for key in doomed if not is_truth(key)))
    foreign = {key: owner for mark in marks for key, owner in _iterate_foreign(mark)}
    owned = await _find_owned(connection, foreign) if foreign else set()
    owned |= await _find_kept_members(connection, marks)
    return frozenset(key for key in doomed if key not in shared and key not in owned)


async def record_claims(
    connection: AsyncConnection, erasure: UUID, page: Sequence[PendingDeletion]
) -> None:
    """Record that objects of these marks may be deleted from now on: a hold that comes later
    reports it."""
    for model, uids in by_model((mark.model, mark.uid) for mark in page):
        unclaimed = erasing.update().where(
            marked_by(erasure, model, uids), erasing.c.claimed_at.is_(None)
        )
        await connection.execute(unclaimed.values(claimed_at=func.now()))


async def iterate_sharers(
    connection: AsyncConnection, page: Sequence[PendingDeletion]
) -> AsyncIterator[set[Identity]]:
    """Yield, page by page, claimed inferences that point to an object of these marks.

    If a hold protects one of them, the object stays. An inference that is not claimed keeps it
    anyway, and one that a replay found erased keeps nothing.
    """
    own = {(mark.model, mark.uid) for mark in page}
    here = blob_reference.c
    listed = among_keys(here.storage_key, {key for mark in page for key in mark.doomed})
    claimed = pending_deletions.select_marks(blob_reference).where(
        erasing.c.claimed_at.is_not(None), erasing.c.erased_at.is_(None)
    )
    position = (here.storage_key, here.model, here.uid)
    query = select(*position).where(listed, claimed.exists())
    query = query.order_by(*position).limit(_SHARERS)
    page_query = query
    while rows := list(await connection.execute(page_query)):
        yield {(row.model, row.uid) for row in rows} - own
        page_query = query.where(
            tuple_(*position) > tuple_(*(literal(value) for value in rows[-1]))
        )
    if owners := {owner for mark in page for _, owner in _iterate_foreign(mark)}:
        captured = await find_captured(connection, owners, claimed=True)
        yield {(row.model, row.uid) for _, row in captured} - own
    if strange := _list_strange_members(page):
        of_members = await _find_member_owners(connection, strange, claimed=True)
        yield {(row.model, row.uid) for _, row in of_members} - own


async def find_referenced(connection: AsyncConnection, keys: Iterable[str]) -> set[str]:
    """Return the keys that an inference points to that is not being deleted itself. Call it in the
    fence.

    An inference that is marked and not claimed may stay: its erasure is cancelled, or a hold
    protects it.
    """
    here = blob_reference.c.storage_key
    query = _select_referenced(here).where(among_keys(here, keys))
    return set((await connection.execute(query)).scalars())


async def find_referenced_members(
    connection: AsyncConnection, places: Iterable[str], marks: Sequence[PendingDeletion]
) -> dict[str, frozenset[int]]:
    """Return, as `find_referenced`, where the data of members of segments lie that an inference
    points to, by the segment; without what a mark's inference points to itself and owns, which an
    edit has left."""
    here = blob_reference.c
    # the expression and the condition of an index
    segment_of = func.split_part(here.storage_key, literal_column("'#'"), literal_column("1"))
    query = _select_referenced(here.storage_key, here.model, here.uid)
    query = query.where(text("storage_key LIKE '%#%'"), among_keys(segment_of, places))
    by_identity = {(mark.model, mark.uid): mark for mark in marks}
    offsets: defaultdict[str, set[int]] = defaultdict(set)
    for key, model, uid in await connection.execute(query):
        mark, member = by_identity.get((model, uid)), member_of(parse_stored(key).key)
        if member is not None and not (mark is not None and (mark.owns(key) or is_truth(key))):
            offsets[key.partition("#")[0]].add(member.offset)
    return {place: frozenset(found) for place, found in offsets.items()}


def _select_referenced(*columns: ColumnElement[Any]) -> Select[Any]:
    claimed = pending_deletions.select_marks(blob_reference).where(
        erasing.c.claimed_at.is_not(None),
        or_(erasing.c.scope == "inference", *_match_part_alone()),
    )
    return select(*columns).distinct().where(~claimed.exists())


def _match_part_alone() -> Iterable[ColumnElement[bool]]:
    """Yield conditions of references to the part that is being erased, which is no other blob as
    well."""
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


def _iterate_foreign(mark: PendingDeletion) -> Iterable[tuple[str, _Owner]]:
    """Yield keys of our own layout that name another capture, or another model, than the mark's.

    A capture's own keys need no reference row. So a key in the event of a stranger is compared with
    its owner: otherwise the erasure of one inference would delete the objects of another.
    """
    for key in mark.doomed:
        owner = read_owner(parse_stored(key))
        if owner is not None and not mark.owns(key):
            yield key, owner


def read_owner(key: StorageKey) -> _Owner | None:
    """Return the capture that a key of our own layout names."""
    capture_key = capture_of(key.key)
    if capture_key is None:
        return None
    return _Owner(*capture_key)


async def _find_owned(connection: AsyncConnection, foreign: Mapping[str, _Owner]) -> set[str]:
    rows: dict[_Owner, list[Any]] = defaultdict(list)
    for owner, row in await find_captured(connection, set(foreign.values()), claimed=False):
        rows[owner].append(row)
    return {
        key for key, owner in foreign.items() if any(_has_object(row, key) for row in rows[owner])
    }


def _has_object(row: Any, key: str) -> bool:
    """Return whether a row still has an object.

    It does not have a part that was erased or is claimed, which stayed for others. If its input was
    erased, it does not have the metadata blob either that it left to others.
    """
    parts = (
        (row.data_storage_key, row.input_gone),
        (row.response_storage_key, row.response_gone),
        (row.metadata_storage_key, False),
    )
    if any(storage_key == key for storage_key, _ in parts):
        return any(storage_key == key and not is_gone for storage_key, is_gone in parts)
    is_edit = row.metadata_storage_key is not None and is_edited(row.metadata_storage_key)
    return not (is_edit and key.endswith("/metadata"))


async def find_captured(
    connection: AsyncConnection, owners: set[_Owner], *, claimed: bool | None = None
) -> list[tuple[_Owner, Any]]:
    """Return the stored inferences of captures, in their hours by whatever clock: those that are
    `claimed`, those that are not claimed whole, or all."""
    of_model: dict[str, list[_Owner]] = defaultdict(list)
    for owner in owners:
        of_model[owner.model_id].append(owner)
    query = select(registration.c.model_id, registration.c.model)
    query = query.where(registration.c.model_id.in_(set(of_model)))
    models = {row.model_id: row.model for row in await connection.execute(query)}
    captured: list[tuple[_Owner, Any]] = []
    for model_id, model in sorted(models.items()):
        for lo, hi in around(owner.hour for owner in of_model[model_id]):
            # a stranger may name one capture under several hours: all of them count
            by_capture: dict[UUID, list[_Owner]] = defaultdict(list)
            for owner in of_model[model_id]:
                if lo <= owner.hour < hi:
                    by_capture[owner.capture_id].append(owner)
            stored = _select_stored(model, lo, hi, list(by_capture), claimed=claimed)
            for row in await connection.execute(stored):
                captured += [(owner, row) for owner in by_capture[row.capture_id]]
    return captured


def _select_stored(
    model: int, lo: datetime, hi: datetime, captures: list[UUID] | None, *, claimed: bool | None
) -> Select[Any]:
    here = inference.c
    claim = pending_deletions.select_marks(inference).where(erasing.c.claimed_at.is_not(None))
    whole, of_input, of_response = (
        claim.where(erasing.c.scope == scope).exists()
        for scope in ("inference", "input", "response")
    )
    wanted = [] if claimed is None else [claim.exists() if claimed else ~whole]
    if captures is not None:
        wanted.append(here.capture_id == any_(literal(captures, ARRAY(UUID_TYPE(as_uuid=True)))))
    return select(
        *(here.capture_id, here.model, here.uid),
        *(here.data_storage_key, here.response_storage_key, here.metadata_storage_key),
        or_(here.data_deleted_at.is_not(None), of_input).label("input_gone"),
        or_(here.response_deleted_at.is_not(None), of_response).label("response_gone"),
    ).where(
        here.model == model,
        here.uid >= uid_floor(lo),
        here.uid < uid_floor(hi),
        *wanted,
    )


def _list_strange_members(marks: Sequence[PendingDeletion]) -> dict[str, PendingDeletion]:
    """Return the members of segments that a mark would delete and that no mark owns."""
    strange = {
        key: mark
        for mark in marks
        for key in mark.doomed
        if "#" in key
        and not mark.owns(key)
        and not is_truth(key)
        and member_of(parse_stored(key).key) is not None
    }
    owned = {key for mark in marks for key in mark.doomed if key in strange and mark.owns(key)}
    return {key: mark for key, mark in strange.items() if key not in owned}


async def _find_kept_members(
    connection: AsyncConnection, marks: Sequence[PendingDeletion]
) -> set[str]:
    """Return the members that marks may not erase because these do not own them.

    A stored inference erases those alone that their owner has left over; what was never stored,
    those of its model. In both cases no stored owner has them.
    """
    strange = _list_strange_members(marks)
    if not strange:
        return set()
    left = await _find_left_over(connection, strange)
    owned = {key for key, _ in await _find_member_owners(connection, strange, claimed=False)}

    def may_go(key: str, mark: PendingDeletion) -> bool:
        return key in left if mark.is_stored else _read_model(key) == mark.model_id

    return {key for key, mark in strange.items() if key in owned or not may_go(key, mark)}


def _read_model(key: str) -> str | None:
    member = member_of(parse_stored(key).key)
    names = None if member is None else segment_of_key(member.segment)
    return None if names is None else names[0]


async def _find_left_over(connection: AsyncConnection, keys: Iterable[str]) -> set[str]:
    members = {key: member_of(parse_stored(key).key) for key in keys}
    here, places = segment.c, {key.partition("#")[0] for key in members}
    query = select(here.storage_key, here.left_over).where(among_keys(here.storage_key, places))
    left = {row.storage_key: row.left_over for row in await connection.execute(query)}
    return {
        key
        for key, member in members.items()
        if member is not None
        and any(
            span.lower <= member.offset and member.offset + member.length <= span.upper
            for span in left.get(key.partition("#")[0]) or ()
        )
    }


async def _find_member_owners(
    connection: AsyncConnection, keys: Iterable[str], *, claimed: bool
) -> list[tuple[str, Any]]:
    """Return the stored inferences that own these members, each with the member: those that are
    `claimed`, or those that are not claimed whole and still have it."""
    by_segment: dict[str, list[str]] = defaultdict(list)
    for key in keys:
        by_segment[parse_stored(key).key.partition("#")[0]].append(key)
    owners: list[tuple[str, Any]] = []
    for place, members in sorted(by_segment.items()):
        if (names := segment_of_key(place)) is None:
            continue
        models = await registrations.find_by_ids(connection, [names[0]])
        for found in models.values():
            [(lo, hi)] = around([names[1]])
            here = (inference.c[name] for name in KEYS[:3])
            named = or_(*(among_keys(column, members) for column in here))
            query = _select_stored(found.model, lo, hi, None, claimed=claimed).where(named)
            for row in await connection.execute(query):
                if row.capture_id is not None and is_packed_in(row.capture_id, names[2]):
                    owners += [(key, row) for key in members if claimed or _has_object(row, key)]
    return owners
