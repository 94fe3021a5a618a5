"""Pending deletions, called marks: no query shows them, and no writer adds a reference to their
objects.

The race between an eraser and an ingester, over an object K that several inferences share:

    ingester  fence shared · does a mark claim K? then park the event · else write
              blob_reference(K) · commit
    eraser    mark (names K) · commit · fence exclusive · does anyone else reference K? ·
              commit · delete K · see it gone · delete rows and mark · commit

The fence orders the two transactions. If the ingester's was first, its reference is committed
when the eraser reads, and K stays. If the eraser read first, its mark was committed before that,
so that the ingester sees the mark and parks the event. The event is tried again when the mark is
removed, finds K missing, and waits or becomes a dead letter: there is never a row whose object
vanishes. What is read after the fence is read by a statement of its own: a statement that waited
for the fence would read a snapshot from before.

The fence is held for the length of one short transaction, and never during a call to S3, except
by an ingester that writes sidecars, whose transaction waits for them (index/sidecars.py). A claim
is not stored: after a crash the marks are still there, and the eraser reads again.

Other objects that an inference points to (`blob_reference`) are deleted with it, for example the
blobs of metadata edits.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, TypeAlias
from uuid import UUID, uuid4

from sqlalchemy import (
    ARRAY,
    FromClause,
    Select,
    func,
    literal,
    or_,
    select,
    tuple_,
    type_coerce,
    union,
)
from sqlalchemy import UUID as UUID_TYPE
from sqlalchemy.dialects.postgresql import BYTEA, insert
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.erasure.progress import Cause
from inference_store.index import registrations
from inference_store.index.partitions import TimePartition, TimePartitions, list_partitions
from inference_store.index.sidecars import Identity, among, among_keys, by_model, marked_by
from inference_store.index.tables import (
    MARKED_KEY,
    blob_reference,
    erased_batch,
    erased_span,
    erasing,
    erasing_object,
    erasure,
    inference,
    partition_span,
    tombstone,
    truth_set,
)
from inference_store.inference.events import parse_stored, received_at_of, uid_floor
from inference_store.inference.layout import belongs_to, edited_key, is_truth

_ROWS, _SPANS = 1000, 8

# the columns of a new mark (what becomes of it is noted later), and those of them that name objects
COLUMNS: Final = tuple(column.name for column in erasing.c if not column.name.endswith("_at"))
KEYS: Final = tuple(name for name in COLUMNS if name.endswith("_storage_key"))
# The position of a mark in its erasure: model, first storage key, uid. Neighbours in the bucket are
# deleted together, because their deletion is verified by listing.
Position: TypeAlias = tuple[int, str, UUID]
# model, uid, scope, and the storage keys of data, response, metadata and sidecar
Arrival: TypeAlias = tuple[int, UUID, str, str | None, str | None, str | None, str | None]


@dataclass(frozen=True, slots=True)
class PendingDeletion:
    """The part of one inference that is to be erased, and the keys of its objects."""

    model: int
    uid: UUID
    scope: str
    data: str | None
    response: str | None
    metadata: str | None
    sidecar: str | None
    # of the stored inference; None if there is none, or if its producer gave none
    capture_id: UUID | None
    # storage keys that the stored inference points to
    references: tuple[str, ...] = ()
    # those of them that are truth which was replaced or deleted
    superseded: tuple[str, ...] = ()
    # None if the model is no longer registered
    model_id: str | None = None
    # whether there is a stored inference
    is_stored: bool = True
    # it was deleted before a restore brought it back: no hold protects it any more
    was_erased: bool = False
    # a certificate has it already
    was_certified: bool = False

    @property
    def position(self) -> Position:
        """Its position in the order of `list_pending`."""
        return self.model, self.data or self.response or self.metadata or "", self.uid

    def owns(self, key: str) -> bool:
        """Return whether a storage key is of our own layout and names this inference's capture."""
        own = (self.model_id, self.capture_id, received_at_of(self.uid))
        return belongs_to(parse_stored(key).key, *own)

    def has_edited(self, key: str) -> bool:
        """Return whether a storage key is that of a metadata blob that an edit made for it."""
        return parse_stored(key).key == edited_key(self.model_id or "", self.uid)

    @property
    def doomed(self) -> tuple[str, ...]:
        """The storage keys of the objects to delete, unless others point to them."""
        keys = [self.data, self.response, self.metadata]
        if self.scope == "input":
            # an object that is both response and datum stays with the response
            keys = [] if self.data in keys[1:] else keys[:1]
        elif self.scope == "response":
            keys = [] if self.response in (self.data, self.metadata) else [self.response]
        elif self.scope == "truth":
            keys = list(self.superseded)
        else:
            keys += [self.sidecar, *self.references]
        return tuple(dict.fromkeys(key for key in keys if key is not None))


async def find_claimed(
    connection: AsyncConnection, keys: Iterable[str], *, objects: bool = True
) -> set[str]:
    """Return the storage keys that an erasure is deleting. Call it after `fence_shared`.

    `objects`: also those that no inference names.
    """
    listed = list(keys)
    if not listed:
        return set()
    claimed = await find_claimed_objects(connection, listed) if objects else set()
    return claimed | await _find_claimed_by_inference(connection, listed)


async def find_claimed_objects(connection: AsyncConnection, keys: Iterable[str]) -> set[str]:
    """Return the keys that are being deleted and that no inference names. Call it after
    `fence_shared`."""
    here = erasing_object.c
    if not await connection.scalar(select(select(here.storage_key).exists())):
        return set()
    query = select(here.storage_key).where(
        here.claimed_at.is_not(None), among_keys(here.storage_key, keys)
    )
    return set((await connection.execute(query)).scalars())


async def _find_claimed_by_inference(connection: AsyncConnection, keys: Sequence[str]) -> set[str]:
    if not await connection.scalar(select(select(erasing).exists())):
        return set()
    whole = erasing.c.scope == "inference"
    claimed = union(
        *(
            select(column).where(or_(whole, erasing.c.scope == part), among_keys(column, keys))
            for part, column in (
                ("input", erasing.c.data_storage_key),
                ("response", erasing.c.response_storage_key),
                ("inference", erasing.c.metadata_storage_key),
                ("inference", erasing.c.sidecar_storage_key),
            )
        ),
        select(blob_reference.c.storage_key).where(
            among_keys(blob_reference.c.storage_key, keys),
            select_marks(blob_reference).where(whole).exists(),
        ),
    )
    return set((await connection.execute(claimed)).scalars())


def select_marks(table: FromClause) -> Select[Any]:
    """Select the marks of a row of a table: its inference, or a part of it, is being erased."""
    here = erasing.c
    return select(here.uid).where(here.model == table.c.model, here.uid == table.c.uid)


async def find_scopes(connection: AsyncConnection, model: int, uid: UUID) -> set[str]:
    """Return what of an inference is being erased.

    An edit calls this after it has locked the inference's row: an eraser leaves locked rows out.
    Replaced truth hinders no edit.
    """
    query = select(erasing.c.scope).where(erasing.c.model == model, erasing.c.uid == uid)
    query = query.where(erasing.c.scope != "truth")
    return set((await connection.execute(query)).scalars())


async def add_pending(
    connection: AsyncConnection, erasure: UUID, arrivals: Iterable[Arrival]
) -> int:
    """Mark these inferences, stored or not; return how many this erasure had not marked before."""
    # one order everywhere: two that mark the same inferences never wait for each other in a circle
    rows = [
        (model, uid, scope, erasure, *keys)
        for model, uid, scope, *keys in sorted(arrivals, key=lambda row: row[:3])
    ]
    added = 0
    for start in range(0, len(rows), _ROWS):
        # arrays: a statement with a parameter for each value takes ten times as long
        columns = zip(*rows[start : start + _ROWS], strict=True)
        listed = [
            func.unnest(literal(list(values), ARRAY(erasing.c[name].type)))
            for name, values in zip(COLUMNS, columns, strict=True)
        ]
        inserted = insert(erasing).from_select(COLUMNS, select(*listed)).on_conflict_do_nothing()
        added += (await connection.execute(inserted)).rowcount
    return added


async def list_pending(
    connection: AsyncConnection, erasure: UUID, *, after: Position | None, limit: int
) -> list[PendingDeletion]:
    """Return the next marks of an erasure in the order of their positions, after `after`.

    At most `limit`, and no more than lie in a few partitions.
    """
    order = (erasing.c.model, MARKED_KEY, erasing.c.uid)
    query = select(erasing).where(erasing.c.erasure == erasure).order_by(*order).limit(limit)
    if after is not None:
        query = query.where(tuple_(*order) > tuple_(*(literal(value) for value in after)))
    rows = list(await connection.execute(query))
    page = rows[: len(await limit_to_few_spans(connection, [row.uid for row in rows]))]
    identities = [(row.model, row.uid) for row in page]
    # the owners of keys are read only if there are keys
    with_objects = [
        (row.model, row.uid)
        for row in page
        if row.data_storage_key or row.response_storage_key or row.metadata_storage_key
    ]
    references = await _find_references(connection, identities)
    captures = await _find_captures(connection, [*with_objects, *references])
    current = await _find_truth(connection, [(r.model, r.uid) for r in page if r.scope == "truth"])
    names = await registrations.names(connection, {model for model, _ in identities})
    return [
        PendingDeletion(
            model=row.model,
            uid=row.uid,
            scope=row.scope,
            data=row.data_storage_key,
            response=row.response_storage_key,
            metadata=row.metadata_storage_key,
            sidecar=row.sidecar_storage_key,
            capture_id=captures.get((row.model, row.uid)),
            references=(refers := references.get((row.model, row.uid), ())),
            superseded=tuple(key for key in refers if is_truth(key) and key not in current),
            model_id=names.get(row.model),
            is_stored=(row.model, row.uid) in captures,
            was_erased=row.erased_at is not None,
            was_certified=row.certified_at is not None,
        )
        for row in page
    ]


async def remove_pending(
    connection: AsyncConnection, erasure: UUID, model: int, uids: Sequence[UUID]
) -> int:
    """Remove marks whose data is erased, and return how many there were."""
    removed = erasing.delete().where(marked_by(erasure, model, uids))
    return (await connection.execute(removed)).rowcount


async def limit_to_few_spans(connection: AsyncConnection, uids: Sequence[UUID]) -> Sequence[UUID]:
    """Return as many of the uids, from the first on, as lie in eight spans.

    A transaction locks every partition that it touches, in every table and with its indexes: a few
    hundred at once fill the table of locks.
    """
    partitions = TimePartitions(await list_partitions(connection, closed=True))
    touched: set[TimePartition | None] = set()
    lo = hi = UUID(int=0)
    for number, uid in enumerate(uids):
        if lo <= uid < hi:
            continue  # of the span before
        span = partitions.find(received_at_of(uid))
        touched.add(span)
        if len(touched) > _SPANS:
            return uids[:number]
        if span is not None:
            lo, hi = uid_floor(span.lo), uid_floor(span.hi)
    return uids


async def _find_captures(
    connection: AsyncConnection, identities: Sequence[Identity]
) -> dict[Identity, UUID | None]:
    """Return the captures of those that are stored; None: its producer gave none."""
    captures: dict[Identity, UUID | None] = {}
    for model, uids in by_model(identities):
        query = select(inference.c.uid, inference.c.capture_id).where(among(inference, model, uids))
        captures |= {(model, row.uid): row.capture_id for row in await connection.execute(query)}
    return captures


async def _find_references(
    connection: AsyncConnection, identities: Sequence[Identity]
) -> dict[Identity, tuple[str, ...]]:
    """Return what inferences point to. Nothing is added once they are marked: see `find_scopes`."""
    references: dict[Identity, tuple[str, ...]] = {}
    for model, uids in by_model(identities):
        query = select(blob_reference.c.uid, blob_reference.c.storage_key)
        query = query.where(among(blob_reference, model, uids))
        for uid, key in await connection.execute(query.order_by(blob_reference.c.storage_key)):
            references[model, uid] = (*references.get((model, uid), ()), key)
    return references


async def _find_truth(connection: AsyncConnection, identities: Sequence[Identity]) -> set[str]:
    """Return the storage keys of the truth that inferences have now."""
    keys: set[str] = set()
    for model, uids in by_model(identities):
        query = select(truth_set.c.storage_key).where(among(truth_set, model, uids))
        keys |= set((await connection.execute(query)).scalars())
    return keys


async def enqueue_superseded(
    connection: AsyncConnection, model: int, uids: Collection[UUID]
) -> None:
    """Queue the truth that inferences had until now, for deletion: its bytes may be personal. Call
    it in the transaction that replaces it.

    Which keys these are is read from `blob_reference` when they are deleted.
    """
    if uids:
        number, nothing = uuid4(), (None, None, None, None)
        added = await add_pending(
            connection, number, [(model, uid, "truth", *nothing) for uid in uids]
        )
        values = {"id": number, "model": model, "cause": "replaced", "scope": "truth"}
        inserted = erasure.insert().values(**values, state="pending", marked=added)
        await connection.execute(inserted)


_OF_ARRIVALS: tuple[Cause, ...] = ("erased_again", "expired_arrival")


async def enqueue_arrivals(
    connection: AsyncConnection, arrivals: Iterable[Arrival], *, cause: Cause
) -> None:
    """Queue what arrived and may not stay: model, uid, scope and the keys of its objects.

    Call it in the batch's own transaction. Each batch makes erasures of its own, one for each model
    and scope: all ingesters would wait for a row that each of them adds to.
    """
    groups: dict[tuple[int, str], list[Arrival]] = defaultdict(list)
    for arrival in arrivals:
        groups[arrival[0], arrival[2]].append(arrival)
    for (model, scope), group in sorted(groups.items()):
        number = uuid4()
        # delivered again before it was erased: its erasure is there
        unmarked = await _list_unmarked(connection, group)
        if added := await add_pending(connection, number, unmarked):
            values = {"id": number, "model": model, "cause": cause, "scope": scope}
            inserted = erasure.insert().values(**values, state="pending", marked=added)
            await connection.execute(inserted)


async def _list_unmarked(connection: AsyncConnection, arrivals: Iterable[Arrival]) -> list[Arrival]:
    """Return the arrivals that no earlier arrival has marked in their scope and that nobody has
    claimed.

    What is claimed may have been deleted before it came again, and another erasure may be
    cancelled.
    """
    listed = list(arrivals)
    marked: set[tuple[int, UUID, str]] = set()
    for model, uids in by_model((arrival[0], arrival[1]) for arrival in listed):
        query = select(erasing.c.model, erasing.c.uid, erasing.c.scope, erasing.c.erasure)
        query = query.where(among(erasing, model, uids), erasing.c.claimed_at.is_(None))
        rows = list(await connection.execute(query))
        # a statement of its own: marks are distributed, erasures are not
        ours = select(erasure.c.id).where(
            erasure.c.id.in_({row.erasure for row in rows}), erasure.c.cause.in_(_OF_ARRIVALS)
        )
        own = set((await connection.execute(ours)).scalars()) if rows else set()
        marked |= {(row.model, row.uid, row.scope) for row in rows if row.erasure in own}
    return [arrival for arrival in listed if arrival[:3] not in marked]


# Records what was erased, so that a late redelivery does not restore it.
#
# Each inference is recorded by itself. If a span of time was dropped as a whole, its uids are
# recorded as lists, one row for each batch, so that a redelivery differs from an event of the same
# time that was never here.

_FORGOTTEN = 10_000


async def find_erased(connection: AsyncConnection, identities: Iterable[Identity]) -> set[Identity]:
    """Return those that were erased or are being erased."""
    erased: set[Identity] = set()
    for model, uids in by_model(identities):
        whole = erasing.c.scope == "inference"
        query = select(erasing.c.uid).where(among(erasing, model, uids), whole)
        erased_uids = set((await connection.execute(query)).scalars())
        erased_uids |= await list_erased(connection, model, uids)
        erased |= {(model, uid) for uid in erased_uids}
    return erased


async def list_erased(connection: AsyncConnection, model: int, uids: Sequence[UUID]) -> set[UUID]:
    """Return the uids that were erased."""
    query = select(tombstone.c.uid).where(among(tombstone, model, uids))
    erased = set((await connection.execute(query)).scalars())
    times, here = {uid: received_at_of(uid) for uid in uids}, erased_span.c
    dropped = select(here.lo, here.hi).where(
        here.model == model, here.lo <= max(times.values()), here.hi > min(times.values())
    )
    for row in await connection.execute(dropped):
        in_span = {uid for uid, at in times.items() if row.lo <= at < row.hi}
        if unknown := in_span - erased:
            erased |= await _find_listed(connection, model, row.lo, unknown)
    return erased


async def add_batch(connection: AsyncConnection, model: int, uids: Sequence[UUID]) -> None:
    """Record the uids that are deleted with a span."""
    listed = b"".join(uid.bytes for uid in sorted(uids))
    values = {"model": model, "first": min(uids), "last": max(uids), "uids": listed}
    await connection.execute(erased_batch.insert().values(values))
    # a span is recorded as long as the last uid that was deleted with it
    at, here = received_at_of(uids[0]), erased_span.c
    where = (here.model == model, here.lo <= at, here.hi > at)
    await connection.execute(erased_span.update().where(*where).values(erased_at=func.now()))


async def find_since(
    connection: AsyncConnection, model: int, uids: Sequence[UUID], at: datetime
) -> set[UUID]:
    """Return the uids that were erased at that time or later, each by itself."""
    query = select(tombstone.c.uid).where(
        among(tombstone, model, uids), tombstone.c.erased_at >= at
    )
    return set((await connection.execute(query)).scalars())


async def find_times(
    connection: AsyncConnection, identities: Iterable[Identity]
) -> dict[Identity, datetime]:
    """Return when each was last erased, or when its objects were claimed for that.

    What was erased with a span of time is left out.
    """
    times: dict[Identity, datetime] = {}
    for model, uids in by_model(identities):
        erased = select(tombstone.c.uid, tombstone.c.erased_at.label("at"))
        claimed = select(erasing.c.uid, func.max(erasing.c.claimed_at).label("at"))
        claimed = claimed.where(erasing.c.scope == "inference", erasing.c.claimed_at.is_not(None))
        for query, table in ((erased, tombstone), (claimed.group_by(erasing.c.uid), erasing)):
            for row in await connection.execute(query.where(among(table, model, uids))):
                earlier = times.get((model, row.uid), row.at)
                times[model, row.uid] = max(earlier, row.at)
    return times


async def delete_old(
    connection: AsyncConnection, *, older_than_seconds: float, limit: int = _FORGOTTEN
) -> int:
    """Delete the records of what was erased so long ago that no event of it can still arrive.

    Return how many rows, at most `limit` of each table: call it again until it is 0.
    """
    before = func.now() - func.make_interval(0, 0, 0, 0, 0, 0, older_than_seconds)
    # while a span is being dropped, more is added to its lists
    here, span = erased_span.c, partition_span.c
    dropping = select(span.name).where(
        span.state == "dropping", span.lo < here.hi, span.hi > here.lo
    )
    deleted = 0
    for table in (tombstone, erased_batch, erased_span):
        keys = list(table.primary_key)
        old = select(*keys).where(table.c.erased_at < before).limit(limit)
        if table is erased_span:
            old = old.where(~dropping.exists())
        expired = table.delete().where(tuple_(*keys).in_(old))
        deleted += (await connection.execute(expired)).rowcount
    return deleted


async def _find_listed(
    connection: AsyncConnection, model: int, lo: datetime, uids: Collection[UUID]
) -> set[UUID]:
    unnested = func.unnest(literal(sorted(uids), ARRAY(UUID_TYPE(as_uuid=True))))
    requested = select(unnested.column_valued("uid")).subquery()
    here, uid = erased_batch.c, requested.c.uid
    position = func.pg_catalog.position(here.uids, type_coerce(func.uuid_send(uid), BYTEA))
    query = select(uid).where(
        here.model == model, here.first >= uid_floor(lo), here.first <= uid, here.last >= uid
    )
    return set((await connection.execute(query.where(position > 0))).scalars())
