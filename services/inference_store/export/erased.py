"""What erasures take of exports, who has copies of it, and the objects that they delete.

Recording is done in the transaction that deletes the batch's rows: a crash neither loses it nor
records it twice. The uids of a batch leave every list that names them. The rest of a list stays:
later erasures find in it what copies of the part have. A part that has an object becomes `stale`:
nobody is given a link to it, its object is deleted before the erasure ends, and it is not written
again.
"""

import re
from bisect import bisect_left
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NamedTuple, TypeAlias
from uuid import UUID

from sqlalchemy import ColumnElement, case, distinct, func, select, tuple_
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inference_store.export.jobs import UID_BYTES, unpack_uids
from inference_store.index.sidecars import Identity, by_model
from inference_store.index.tables import (
    export_download,
    export_erased,
    export_part,
)
from inference_store.inference.field_docs import Hidden, Stored
from inference_store.inference.layout import EXPORTS
from inference_store.objects import Blobs
from inference_store.objects.listing import Held

from .jobs import PARTS, mark_stale, recount

_PART: Final = export_part.c
_ERASED: Final = export_erased.c
_GIVEN: Final = export_download.c
_ORDER: Final = (_PART.export, _PART.number)
_PAGE: Final = 1000
_NOBODY: Final = UUID(int=0)
_MOST_DOWNLOADS: Final = 100_000
_LAST_PART: Final = 2**31 - 1
FIRST_PART: Final = (_NOBODY, -1)
"""Where reading of parts begins."""


async def record_batch(
    connection: AsyncConnection, erasure: UUID, scope: str, identities: Iterable[Identity]
) -> None:
    """Take what a batch erased out of the lists that name it (scope inference), and record it.

    Of a model without exports it is one query by an index. A list is read at a time.
    """
    touched: set[UUID] = set()
    for model, uids in by_model(identities):
        after = FIRST_PART
        while page := await _read_bounds(connection, model, uids, after):
            for row in page:
                at = bisect_left(uids, row.first)
                if at < len(uids) and uids[at] <= row.last:
                    here = (_PART.export == row.export, _PART.number == row.number)
                    if await _record_part(connection, erasure, scope, here, uids):
                        touched.add(row.export)
            after = page[-1].export, page[-1].number
    for export in sorted(touched):
        # first what locks the job: a leader that was frozen may be ending it just now
        await recount(connection, export)
        await mark_stale(connection, export)


async def _read_bounds(
    connection: AsyncConnection, model: int, uids: Sequence[UUID], after: tuple[UUID, int]
) -> Sequence[Any]:
    """Return the next parts of a model that may name some of the uids, which are sorted."""
    query = select(*_ORDER, _PART.first, _PART.last).where(
        _PART.model == model,
        _PART.first <= uids[-1],
        _PART.last >= uids[0],
        tuple_(*_ORDER) > tuple_(*after),
    )
    return (await connection.execute(query.order_by(*_ORDER).limit(_PAGE))).all()


async def _record_part(
    connection: AsyncConnection,
    erasure: UUID,
    scope: str,
    here: Sequence[ColumnElement[bool]],
    uids: Sequence[UUID],
) -> bool:
    """Record what a part names; return whether its export has other counts now. Its row is locked
    before that: nobody is given a link to it meanwhile."""
    row = (await connection.execute(select(export_part).where(*here).with_for_update())).one()
    rest, taken = take_uids(bytes(row.uids), {uid.bytes for uid in uids})
    if not taken:
        return False
    changed = export_part.update().where(*here)
    await connection.execute(changed.values(_change_part(row, scope, rest)))
    erased = {
        "export": row.export,
        "part": row.number,
        "erasure": erasure,
        "scope": scope,
        "inferences": len(taken) // UID_BYTES,
        "uids": taken,
        "storage_key": row.storage_key,
        # not when the transaction began: whoever was given a link before this lock came earlier
        "erased_at": func.clock_timestamp(),
    }
    await connection.execute(export_erased.insert().values(erased))
    return bool(row.state != "removed")


def _change_part(row: Any, scope: str, rest: bytes) -> dict[str, Any]:
    """Return the new columns of a part. `rest`: its list without what was erased."""
    listed = len(row.uids) // UID_BYTES
    values: dict[str, Any] = {"state": row.state}
    if row.storage_key is not None:
        # of one that was cut off nobody knows how many it has: at most those that it lists
        values = {"state": "stale", "rows": listed if row.rows is None else row.rows}
    if scope == "inference":
        # an erased uid is neither the first nor the last of what is left
        first, last = rest[:UID_BYTES] or _NOBODY.bytes, rest[-UID_BYTES:] or _NOBODY.bytes
        values |= {"uids": rest, "first": UUID(bytes=first), "last": UUID(bytes=last)}
        if row.state == "listed":
            values["gone"] = row.gone + listed - len(rest) // UID_BYTES
    return values


def take_uids(uid_list: bytes, doomed: Set[bytes]) -> tuple[bytes, bytes]:
    """Split a list in two: the uids that stay, and those among `doomed` (16 bytes each).

    Raises ValueError if the last uid is incomplete.
    """
    if len(uid_list) % UID_BYTES:
        raise ValueError(f"{len(uid_list)} bytes are no whole number of uids")
    uids = [uid_list[at : at + UID_BYTES] for at in range(0, len(uid_list), UID_BYTES)]
    rest = b"".join(packed for packed in uids if packed not in doomed)
    return rest, b"".join(packed for packed in uids if packed in doomed)


# The objects that name what an erasure took, until they are gone.


class TouchedPart(NamedTuple):
    """A part that an erasure took members of; `storage_key`: its object, if it is stale."""

    export: UUID
    number: int
    storage_key: str | None


async def list_touched(
    connection: AsyncConnection, erasure: UUID, *, after: tuple[UUID, int], limit: int
) -> Sequence[TouchedPart]:
    """Return the next parts whose objects may still have what the erasure took."""
    pending = select(_ERASED.id).where(
        _ERASED.erasure == erasure,
        _ERASED.export == _PART.export,
        _ERASED.part == _PART.number,
        _ERASED.deleted_at.is_(None),
    )
    key = case((_PART.state == "stale", _PART.storage_key))
    query = (
        select(*_ORDER, key.label("storage_key"))
        .select_from(export_part)
        .where(pending.exists(), tuple_(*_ORDER) > tuple_(*after))
    )
    rows = await connection.execute(query.order_by(*_ORDER).limit(limit))
    return [TouchedPart(*row) for row in rows]


async def forget_objects(connection: AsyncConnection, parts: Sequence[TouchedPart]) -> None:
    """Record that the objects of stale parts are gone, for every erasure that waits for them."""
    ids = [(part.export, part.number) for part in parts]
    stale = export_part.update().where(tuple_(*_ORDER).in_(ids), _PART.state == "stale")
    await connection.execute(stale.values(storage_key=None))
    places = tuple_(_ERASED.export, _ERASED.part)
    waiting = export_erased.update().where(places.in_(ids), _ERASED.deleted_at.is_(None))
    await connection.execute(waiting.values(deleted_at=func.clock_timestamp()))


# Who was given links to an export's parts. A link counts as a download: nobody tells whether it was
# used.


class Download(Stored):
    """One caller's downloads of an export."""

    actor: str
    first_at: datetime
    last_at: datetime
    parts: int
    """Links to parts that were given out; a part that was given out twice counts twice."""


async def record_download(
    connection: AsyncConnection, export: UUID, *, actor: str, parts: int
) -> None:
    """Record that a caller was given links to some parts."""
    inserted = insert(export_download).values(export=export, actor=actor, parts=parts)
    changed = {"last_at": func.now(), "parts": _GIVEN.parts + inserted.excluded.parts}
    keys = ["export", "actor"]
    await connection.execute(inserted.on_conflict_do_update(index_elements=keys, set_=changed))


async def list_downloads(
    connection: AsyncConnection, exports: Sequence[UUID], *, limit: int = 1000
) -> dict[UUID, list[Download]]:
    """Return who downloaded each of these exports, the first one first; at most `limit` of each."""
    order = (_GIVEN.first_at, _GIVEN.actor)
    place = func.row_number().over(partition_by=_GIVEN.export, order_by=order).label("place")
    columns = (_GIVEN.export, _GIVEN.actor, _GIVEN.first_at, _GIVEN.last_at, _GIVEN.parts)
    ranked = select(*columns, place).where(_GIVEN.export.in_(exports)).subquery()
    query = select(ranked).where(ranked.c.place <= limit).order_by(ranked.c.export, ranked.c.place)
    downloads: dict[UUID, list[Download]] = {export: [] for export in exports}
    for row in await connection.execute(query):
        downloads[row.export].append(Download.model_validate(row))
    return downloads


async def is_downloaded(connection: AsyncConnection, export: UUID) -> bool:
    """Check whether anybody was given a link to a part."""
    given = select(_GIVEN.export).where(_GIVEN.export == export)
    return bool(await connection.scalar(select(given.exists())))


# What certificates and the holders of copies are told.


@dataclass(frozen=True, slots=True)
class ReachedExport:
    """What an erasure took of an export, and who may have copies of that."""

    id: UUID
    inferences: int
    parts_deleted: int
    downloads: Sequence[Download]
    """Callers who were given links before the erasure recorded its last inference there."""


async def list_reached(connection: AsyncConnection, erasure: UUID) -> list[ReachedExport]:
    """Return the exports that named what an erasure erased, as its certificate names them."""
    parts = func.count(distinct(_ERASED.part)).filter(_ERASED.storage_key.is_not(None))
    query = (
        select(_ERASED.export, func.sum(_ERASED.inferences), parts, func.max(_ERASED.erased_at))
        .where(_ERASED.erasure == erasure)
        .group_by(_ERASED.export)
        .order_by(_ERASED.export)
    )
    reached = (await connection.execute(query)).all()
    exports = []
    for export, inferences, parts_deleted, last_at in reached:
        downloads = await list_downloads(connection, [export], limit=_MOST_DOWNLOADS)
        earlier = [download for download in downloads[export] if download.first_at <= last_at]
        exports.append(ReachedExport(export, int(inferences), parts_deleted, earlier))
    return exports


# Rows in memory at once; a row has the uids of a list at most.
_ROWS: Final = 20
Position: TypeAlias = tuple[int, int]
FIRST: Final[Position] = (0, 0)
"""Where reading of erased members begins."""


class ErasedMember(Stored):
    """A member of an export that an erasure took, or some whose uids are forgotten.

    Uids are told as long as tombstones are kept; afterwards only their number is left.
    """

    uid: UUID | None
    """Null: the store has forgotten the uids."""
    inferences: int
    """1; if `uid` is null, how many they were."""
    scope: str
    """What is erased: `inference`, or its `input` or `response` alone."""
    erased_at: datetime
    erasure: UUID
    position: Hidden[Position]
    """Where reading goes on after it."""


async def list_erased(
    connection: AsyncConnection, export: UUID, *, after: Position, limit: int
) -> Sequence[ErasedMember]:
    """Return what erasures took of an export, in the order in which they did."""
    row_id, skip = after
    erased: list[ErasedMember] = []
    while len(erased) < limit:
        columns = (_ERASED.id, _ERASED.uids, _ERASED.inferences, _ERASED.scope, _ERASED.erased_at)
        query = select(*columns, _ERASED.erasure).where(
            _ERASED.export == export, _ERASED.id >= row_id
        )
        rows = (await connection.execute(query.order_by(_ERASED.id).limit(_ROWS))).all()
        for row in rows:
            members = list(_read_members(row))
            erased += members[skip:] if row.id == after[0] else members
        if len(rows) < _ROWS:
            break
        row_id = rows[-1].id + 1
    return erased[:limit]


def _read_members(row: Any) -> Iterator[ErasedMember]:
    about = {"scope": row.scope, "erased_at": row.erased_at, "erasure": row.erasure}
    if row.uids is None:
        yield ErasedMember(uid=None, inferences=row.inferences, position=(row.id, 1), **about)
        return
    for number, uid in enumerate(unpack_uids(bytes(row.uids)), 1):
        yield ErasedMember(uid=uid, inferences=1, position=(row.id, number), **about)


async def forget_uids(
    connection: AsyncConnection, *, older_than_seconds: float, limit: int = 1000
) -> int:
    """Forget the uids of what was erased long ago; return of how many rows."""
    cutoff = func.now() - func.make_interval(0, 0, 0, 0, 0, 0, older_than_seconds)
    old = select(_ERASED.id).where(_ERASED.uids.is_not(None), _ERASED.erased_at < cutoff)
    forgotten = export_erased.update().where(_ERASED.id.in_(old.limit(limit))).values(uids=None)
    return (await connection.execute(forgotten)).rowcount


async def _iterate_lists(
    connection: AsyncConnection, *where: ColumnElement[bool], without: Set[UUID] = frozenset()
) -> AsyncIterator[tuple[UUID, int, Sequence[UUID]]]:
    """Yield lists, one in memory at a time, each with its export and number."""
    query, after = select(*_ORDER, _PART.uids).where(*where), FIRST_PART
    query = query.order_by(*_ORDER).limit(1)
    while row := (await connection.execute(query.where(tuple_(*_ORDER) > tuple_(*after)))).first():
        is_left_out = row.export in without
        after = row.export, _LAST_PART if is_left_out else row.number
        if not is_left_out:
            yield row.export, row.number, unpack_uids(bytes(row.uids))


class MemberLists:
    """Walks the lists of exports, to find out in which of them something is, without a mark.
    `exports`: those of which a member was found."""

    def __init__(self) -> None:
        self.exports: set[UUID] = set()

    async def walk(
        self, connection: AsyncConnection, model: int, lo: UUID, hi: UUID
    ) -> AsyncIterator[tuple[UUID, Sequence[UUID]]]:
        """Yield the lists of a model that overlap [lo, hi), each with its export.

        One is read at a time, and none of an export that is in `exports` already.
        """
        overlaps = (_PART.first < hi, _PART.last >= lo, func.octet_length(_PART.uids) > 0)
        lists = _iterate_lists(connection, _PART.model == model, *overlaps, without=self.exports)
        async for export, _, uids in lists:
            yield export, uids


# What `certificates verify --objects` looks through: lists, and parts that erasures deleted.


_PART_KEY: Final = re.compile(f"{EXPORTS}[^/]*/{PARTS}")


class ExportRecheck:
    """Checks once. The parts of exports are collected while all objects of the buckets pass."""

    def __init__(self, engine: AsyncEngine, blobs: Blobs) -> None:
        self._engine = engine
        self._bucket = blobs.buckets.default
        self._parts: dict[str, None] = {}

    def pass_objects(self, objects: Iterable[Held]) -> Iterator[Held]:
        """Yield the objects, and collect those of exports."""
        for held in objects:
            if held.key.bucket == self._bucket and _PART_KEY.match(held.key.key):
                self._parts[str(held.key)] = None
            yield held

    async def list_members(self) -> AsyncIterator[tuple[UUID, str]]:
        """Yield what is listed, and a text that says where."""
        async with self._engine.connect() as connection:
            async for export, number, uids in _iterate_lists(connection):
                for uid in uids:
                    yield uid, f"{uid} is in list {number} of export {export} in Postgres"

    async def find_undeleted(self) -> AsyncIterator[str]:
        """Yield parts in the bucket that an erasure has deleted."""
        keys = [*self._parts]
        async with self._engine.connect() as connection:
            for at in range(0, len(keys), _PAGE):
                is_named = _ERASED.storage_key.in_(keys[at : at + _PAGE])
                is_deleted = is_named & _ERASED.deleted_at.is_not(None)
                query = select(_ERASED.storage_key).distinct().where(is_deleted)
                for name in (await connection.execute(query)).scalars():
                    yield f"{name} is in the bucket, and an erasure deleted it"
