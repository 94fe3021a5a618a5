"""Moves what is left of a nearly empty segment to a new one, so that its space comes back.

1. note     the copy's key, in the segment's row: from here on nothing is erased of it
2. put      the copy
3. move     rows, references and marks, through the ledger, so that a restored backup finds the
            copy too: a row of its own takes the place of the old one, and names the old object
4. delete   the other object that a row names, a minute later: readers may have old keys

A crash before 3 leaves a copy that nobody needs, and one after it the old object: 4 deletes either.
The copy is given up through the ledger before: a maker that was stopped cannot move to it any more.
The copy's id has the time of the old one, and the bits of it that its captures repeat.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from secrets import randbelow
from typing import Any, Final
from uuid import UUID

from sqlalchemy import ARRAY, Text, all_, any_, func, literal, or_, select, text, tuple_
from sqlalchemy import UUID as UUID_TYPE
from sqlalchemy.dialects.postgresql import Range, insert
from sqlalchemy.dialects.postgresql.ranges import MultiRange
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.erasure.holds import list_in_force
from inference_store.erasure.object_claims import points_into
from inference_store.erasure.pending_deletions import KEYS
from inference_store.index import registrations
from inference_store.index.sidecars import among, among_keys
from inference_store.index.tables import blob_reference, erasing, erasure_held, inference, segment
from inference_store.inference.events import StorageKey
from inference_store.inference.layout import MOST_MEMBERS, ordinal_of, packed_capture_id

# Larger segments are not copied: a copy is in memory.
_MOST_BYTES: Final = 64 * 1024 * 1024
# Longer than a request to S3 takes with its repetitions.
_MAKING: Final = timedelta(seconds=120)
_READING: Final = timedelta(seconds=60)
_AGAIN: Final = timedelta(minutes=5)
_HERE = segment.c
_IS_FREE: Final = or_(_HERE.leased_until.is_(None), _HERE.leased_until < func.now())
_IS_SPARSE: Final = text(
    "4 * (SELECT sum(upper(s) - lower(s)) FROM unnest(erased) s) > 3 * members"
)


class Unmovable(Exception):
    """Something still needs a segment as it is."""


@dataclass(frozen=True, slots=True)
class SegmentCopy:
    """`members`: the capture of each, its place before, its length, and its new place."""

    model: int
    old: StorageKey
    new: StorageKey
    members: Sequence[tuple[UUID, int, int, int]]
    bytes: int
    hash: str


async def find_sparse(
    connection: AsyncConnection, *, after: tuple[int, str], limit: int
) -> list[Any]:
    """Return the rows of the next segments of which under a quarter of the captures is left."""
    order = (_HERE.model, _HERE.storage_key)
    behind = tuple_(*order) > tuple_(*(literal(value) for value in after))
    is_usual = (all_(_HERE.sizes) <= _MOST_BYTES) & _HERE.other_copy.is_(None)
    query = select(segment).where(behind, is_usual, _IS_SPARSE)
    return list(await connection.execute(query.order_by(*order).limit(limit)))


def choose_key(old: StorageKey, id: UUID) -> StorageKey:
    """Return a new key for a copy of the segment of this id, never the old one."""
    ordinal = (ordinal_of(id) + 1 + randbelow(MOST_MEMBERS - 1)) % MOST_MEMBERS
    new = packed_capture_id(id, ordinal, id.int >> 80)
    return StorageKey(old.bucket, f"{old.key.rpartition('/')[0]}/{new}.tar")


async def note(connection: AsyncConnection, row: Any, copy: SegmentCopy, *, maker: UUID) -> None:
    """Note that a copy is about to be put. Raises Unmovable as `describe`, and if somebody is at
    work on the segment, or it is not as its row said."""
    here = (_HERE.model == row.model, _HERE.storage_key == row.storage_key)
    same = [_HERE[name].is_not_distinct_from(getattr(row, name)) for name in _STATE]
    until = func.now() + _MAKING
    values = {"other_copy": str(copy.new), "leased_by": maker, "leased_until": until}
    await connection.execute(segment.update().where(*here, *same, _IS_FREE).values(values))
    await describe(connection, copy, maker=maker)


_STATE: Final = ("last_hash", "next_hash", "erased", "left_over", "other_copy")


async def describe(
    connection: AsyncConnection, copy: SegmentCopy, *, maker: UUID
) -> dict[str, Any]:
    """Return the ledger's entry of a copy that its maker has noted. Raises Unmovable unless stored
    inferences own all that is left of the segment and nothing else in it, and nothing is held,
    marked or shared."""
    noted = (_HERE.leased_by == maker) & (_HERE.leased_until > func.now())
    own = (_HERE.model == copy.model, _HERE.storage_key == str(copy.old), noted)
    other = await connection.scalar(select(_HERE.other_copy).where(*own).with_for_update())
    model_id = (await registrations.names(connection, {copy.model})).get(copy.model)
    if other != str(copy.new) or await list_in_force(connection, {copy.model}):
        raise Unmovable
    uids = await _find_owners(connection, copy)
    for table in (erasing, erasure_held):
        marked = select(table.c.uid).where(among(table, copy.model, uids)).limit(1)
        if await connection.scalar(marked) is not None:
            raise Unmovable
    return {
        "model_id": model_id,
        "old": str(copy.old),
        "new": str(copy.new),
        "uids": [str(uid) for uid in uids],
        "members": [list(place) for _, *place in copy.members],
        "left": sorted({ordinal_of(capture) for capture, *_ in copy.members}),
        "bytes": copy.bytes,
        "hash": copy.hash,
    }


async def _find_owners(connection: AsyncConnection, copy: SegmentCopy) -> list[UUID]:
    captures = sorted({capture for capture, *_ in copy.members})
    here = inference.c
    # both ids begin with the milliseconds
    near = [UUID(int=capture.int >> 80 << 80) for capture in (captures[0], captures[-1])]
    query = select(here.uid, here.capture_id, *(here[name] for name in KEYS[:3])).where(
        here.model == copy.model,
        here.uid >= near[0],
        here.uid < UUID(int=near[1].int + (2 << 80)),
        here.capture_id == any_(literal(captures, ARRAY(UUID_TYPE(as_uuid=True)))),
    )
    owners: dict[UUID, UUID] = {}
    named: set[tuple[UUID, str]] = set()
    for uid, capture, *keys in await connection.execute(query):
        owners[uid] = capture
        named |= {(capture, key or "") for key in keys}
    references = select(blob_reference).where(points_into([str(copy.old)]))
    for reference in await connection.execute(references):
        if reference.model != copy.model or reference.uid not in owners:
            raise Unmovable
        named.add((owners[reference.uid], reference.storage_key))
    begin = f"{copy.old}#"
    inside = {(capture, key) for capture, key in named if key.startswith(begin)}
    wanted = {(capture, f"{begin}{at}+{length}") for capture, at, length, _ in copy.members}
    if inside != wanted or len(owners) != len(captures):
        raise Unmovable
    return sorted(owners)


async def apply_copied(
    connection: AsyncConnection, body: Mapping[str, Any], _at: datetime, _actor: str
) -> None:
    """Move to a copy what names the members of a segment. Repeatable."""
    found = await registrations.find_by_ids(connection, [body["model_id"]])
    if not found:
        return
    model, uids = found[body["model_id"]].model, [UUID(uid) for uid in body["uids"]]
    old, new = body["old"], body["new"]
    before = [f"{old}#{place}+{length}" for place, length, _ in body["members"]]
    now = [f"{new}#{place}+{length}" for _, length, place in body["members"]]
    texts = (literal(keys, ARRAY(Text(collation="C"))) for keys in (before, now))
    moved = func.unnest(*texts).table_valued("before", "now").render_derived()
    # the rows first: what edits and marks them has their locks
    columns = [table.c[name] for table in (inference, erasing, erasure_held) for name in KEYS[:3]]
    for column in (*columns, blob_reference.c.storage_key):
        own = (among(column.table, model, uids), column == moved.c.before)
        await connection.execute(column.table.update().where(*own).values({column: moved.c.now}))
    members, left = max(body["left"]) + 1, frozenset(body["left"])
    erased = MultiRange(Range(n, n + 1) for n in range(members) if n not in left)
    row = {"model": model, "storage_key": new, "members": members, "other_copy": old}
    row |= {"sizes": [body["bytes"]], "hashes": [body["hash"]], "erased": erased}
    row |= {"announced": MultiRange([Range(0, members)]), "leased_until": func.now() + _READING}
    await connection.execute(insert(segment).values(row).on_conflict_do_nothing())
    gone = segment.delete().where(_HERE.model == model, _HERE.storage_key == old)
    await connection.execute(gone)


async def list_due(connection: AsyncConnection, *, limit: int) -> list[Any]:
    """Return rows of segments whose other copy may be deleted now; with `leased_by`, given up."""
    query = select(segment).where(_HERE.other_copy.is_not(None), _IS_FREE).limit(limit)
    return list(await connection.execute(query))


async def apply_given_up(
    connection: AsyncConnection, body: Mapping[str, Any], _at: datetime, _actor: str
) -> None:
    """End the making of copies. Repeatable."""
    ended = segment.update().where(among_keys(_HERE.other_copy, body["copies"]))
    await connection.execute(ended.values(leased_by=None, leased_until=None))


async def forget(connection: AsyncConnection, gone: Iterable[str], left: Iterable[str]) -> None:
    """Forget other copies of segments; those that are `left` wait some minutes."""
    later = {"leased_until": func.now() + _AGAIN}
    for keys, values in ((gone, {"other_copy": None, "leased_until": None}), (left, later)):
        among_copies = among_keys(_HERE.other_copy, keys)
        await connection.execute(segment.update().where(among_copies).values(values))
