"""Marks: what is being erased. No reader shows it, and no writer adds a reference to its objects.

The race between an eraser and an ingester, over an object K that several inferences share:

    ingester  gate shared · does a mark claim K? then park the event · else write
              blob_reference(K) · commit
    eraser    mark (names K) · commit · gate exclusive · does anyone else reference K? ·
              commit · delete K · see it gone · delete rows and mark · commit

The gate orders the two transactions. If the ingester's was first, its reference is committed
when the eraser looks, and K stays. If the eraser's look was first, its mark was committed
before it, so that the ingester sees the mark and parks the event; it is tried again when the
mark is gone, finds K missing, and waits or becomes a dead letter: never a row whose object
vanishes. What is read after the gate is read by a statement of its own: a statement that
waited for the gate would look at a snapshot from before.

The gate is held for the length of one short transaction, never while S3 is asked; but for an
ingester that writes sidecars, whose transaction waits for them (index/sidecars.py). A claim is
not stored: after a crash the marks are still there, and the eraser looks again.

What else an inference points to (`blob_reference`) goes with it: blobs of metadata edits, say.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias
from uuid import UUID

from sqlalchemy import ARRAY, Text, any_, func, literal, or_, select, tuple_, union
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index.identities import Identity, among, by_model, marked_by
from inference_store.index.partitions import Span, Spans, spans
from inference_store.index.tables import (
    MARKED_KEY,
    blob_reference,
    erasing,
    erasing_object,
    inference,
    registration,
)
from inference_store.inference.events import parse_stored, received_at_of, uid_floor
from inference_store.inference.layout import belongs_to

GATE: Final = 7_302_003
_ROWS, _SPANS = 1000, 8

# of a mark that is new (`claimed_at` is set by the eraser), and of them those that name objects
COLUMNS: Final = tuple(column.name for column in erasing.c if column.name != "claimed_at")
KEYS: Final = tuple(name for name in COLUMNS if name.endswith("_storage_key"))
# Where a mark lies among those of its erasure: model, first storage key, uid. What lies side by
# side in the bucket is deleted side by side, for it is seen to be gone by listing.
Place: TypeAlias = tuple[int, str, UUID]
# model, uid, scope, and the storage keys of data, response, metadata and sidecar
Arrival: TypeAlias = tuple[int, UUID, str, str | None, str | None, str | None, str | None]


@dataclass(frozen=True, slots=True)
class Mark:
    """What is to be erased of one inference, and where its objects are."""

    model: int
    uid: UUID
    scope: str
    data: str | None
    response: str | None
    metadata: str | None
    sidecar: str | None
    # of the stored inference; None where there is none, or its producer gave none
    capture_id: UUID | None
    # storage keys that the stored inference points to
    references: tuple[str, ...] = ()
    # None where the model is no longer registered
    model_id: str | None = None

    @property
    def place(self) -> Place:
        """Its place in the order of `page`."""
        return self.model, self.data or self.response or self.metadata or "", self.uid

    def owns(self, key: str) -> bool:
        """Whether a storage key is of our own layout and names this inference's capture."""
        own = (self.model_id, self.capture_id, received_at_of(self.uid))
        return belongs_to(parse_stored(key).key, *own)

    @property
    def doomed(self) -> tuple[str, ...]:
        """Storage keys of the objects to delete, unless others point to them."""
        keys = [self.data, self.response, self.metadata]
        if self.scope == "input":
            # an object that is the answer as well as the datum stays with the answer
            keys = [] if self.data in keys[1:] else keys[:1]
        elif self.scope == "response":
            keys = [] if self.response in (self.data, self.metadata) else [self.response]
        else:
            keys += [self.sidecar, *self.references]
        return tuple(dict.fromkeys(key for key in keys if key is not None))


async def gate_shared(connection: AsyncConnection) -> None:
    """Let no eraser claim objects or close a span until this transaction ends."""
    await connection.execute(select(func.pg_advisory_xact_lock_shared(GATE)))


async def gate_exclusive(connection: AsyncConnection) -> None:
    """Wait for the writers' transactions, and hold the next ones, until this one ends."""
    await connection.execute(select(func.pg_advisory_xact_lock(GATE)))


async def claimed(
    connection: AsyncConnection, keys: Iterable[str], *, objects: bool = True
) -> set[str]:
    """Those storage keys that an erasure is deleting. After `gate_shared`. `objects`: also those
    that no inference names."""
    wanted = list(keys)
    if not wanted:
        return set()
    found = await claimed_objects(connection, wanted) if objects else set()
    return found | await _claimed(connection, wanted)


async def claimed_objects(connection: AsyncConnection, keys: Iterable[str]) -> set[str]:
    """Those that are being deleted as no inference's. After `gate_shared`."""
    here = erasing_object.c
    if not await connection.scalar(select(select(here.storage_key).exists())):
        return set()
    listed = any_(literal(list(keys), ARRAY(Text(collation="C"))))
    query = select(here.storage_key).where(here.claimed_at.is_not(None), here.storage_key == listed)
    return set((await connection.execute(query)).scalars())


async def _claimed(connection: AsyncConnection, wanted: Sequence[str]) -> set[str]:
    if not await connection.scalar(select(select(erasing).exists())):
        return set()
    # one array: a statement has at most 32,767 parameters
    listed = any_(literal(wanted, ARRAY(Text())))
    listed_references = any_(literal(wanted, ARRAY(Text(collation="C"))))
    whole = erasing.c.scope == "inference"
    found = union(
        *(
            select(column).where(or_(whole, erasing.c.scope == part), column == listed)
            for part, column in (
                ("input", erasing.c.data_storage_key),
                ("response", erasing.c.response_storage_key),
                ("inference", erasing.c.metadata_storage_key),
                ("inference", erasing.c.sidecar_storage_key),
            )
        ),
        select(blob_reference.c.storage_key)
        .join(
            erasing,
            (erasing.c.model == blob_reference.c.model) & (erasing.c.uid == blob_reference.c.uid),
        )
        .where(whole, blob_reference.c.storage_key == listed_references),
    )
    return set((await connection.execute(found)).scalars())


async def scopes(connection: AsyncConnection, model: int, uid: UUID) -> set[str]:
    """What of an inference is being erased.

    An edit asks this after it has locked the inference's row: an eraser leaves locked rows out.
    """
    query = select(erasing.c.scope).where(erasing.c.model == model, erasing.c.uid == uid)
    return set((await connection.execute(query)).scalars())


async def add(connection: AsyncConnection, erasure: UUID, arrivals: Iterable[Arrival]) -> int:
    """Mark what is named, stored or not; how many this erasure had not marked before."""
    # one order everywhere: two that mark the same wait for each other, never crosswise
    rows = [
        (model, uid, scope, erasure, *keys)
        for model, uid, scope, *keys in sorted(arrivals, key=lambda row: row[:3])
    ]
    added = 0
    for start in range(0, len(rows), _ROWS):
        # arrays: a statement with a parameter for each value takes ten times as long
        some = zip(*rows[start : start + _ROWS], strict=True)
        listed = [
            func.unnest(literal(list(each), ARRAY(erasing.c[name].type)))
            for name, each in zip(COLUMNS, some, strict=True)
        ]
        made = insert(erasing).from_select(COLUMNS, select(*listed)).on_conflict_do_nothing()
        added += (await connection.execute(made)).rowcount
    return added


async def page(
    connection: AsyncConnection, erasure: UUID, *, after: Place | None, limit: int
) -> list[Mark]:
    """The first marks of an erasure in the order of their places, behind `after`.

    At most `limit`, and no more than lie in a few partitions.
    """
    order = (erasing.c.model, MARKED_KEY, erasing.c.uid)
    query = select(erasing).where(erasing.c.erasure == erasure).order_by(*order).limit(limit)
    if after is not None:
        query = query.where(tuple_(*order) > tuple_(*(literal(each) for each in after)))
    rows = list(await connection.execute(query))
    found = rows[: len(await in_few_spans(connection, [row.uid for row in rows]))]
    identities = [(row.model, row.uid) for row in found]
    # whose keys they are is asked for only where there are any
    named = [
        (row.model, row.uid)
        for row in found
        if row.data_storage_key or row.response_storage_key or row.metadata_storage_key
    ]
    references = await _references(connection, identities)
    captures = await _captures(connection, [*named, *references])
    names = await _names(connection, {model for model, _ in identities})
    return [
        _mark(row, captures.get(identity), references.get(identity, ()), names.get(row.model))
        for row, identity in zip(found, identities, strict=True)
    ]


async def remove(
    connection: AsyncConnection, erasure: UUID, model: int, uids: Sequence[UUID]
) -> int:
    """Take marks away: what they said to erase is gone. How many there were."""
    removed = erasing.delete().where(marked_by(erasure, model, uids))
    return (await connection.execute(removed)).rowcount


async def in_few_spans(connection: AsyncConnection, uids: Sequence[UUID]) -> Sequence[UUID]:
    """As many uids, from the first on, as lie in eight spans.

    A transaction locks every partition that it touches, in every table and with its indexes:
    a few hundred at once fill the table of locks.
    """
    known = Spans(await spans(connection, closed=True))
    seen: set[Span | None] = set()
    lo = hi = UUID(int=0)
    for number, uid in enumerate(uids):
        if lo <= uid < hi:
            continue  # of the span before
        span = known.find(received_at_of(uid))
        seen.add(span)
        if len(seen) > _SPANS:
            return uids[:number]
        if span is not None:
            lo, hi = uid_floor(span.lo), uid_floor(span.hi)
    return uids


async def _captures(
    connection: AsyncConnection, identities: Sequence[Identity]
) -> dict[Identity, UUID]:
    found: dict[Identity, UUID] = {}
    for model, uids in by_model(identities):
        query = select(inference.c.uid, inference.c.capture_id).where(
            among(inference, model, uids), inference.c.capture_id.is_not(None)
        )
        found |= {(model, row.uid): row.capture_id for row in await connection.execute(query)}
    return found


async def _references(
    connection: AsyncConnection, identities: Sequence[Identity]
) -> dict[Identity, tuple[str, ...]]:
    """What inferences point to. Nothing is added once they are marked: see `scopes`."""
    found: dict[Identity, tuple[str, ...]] = {}
    for model, uids in by_model(identities):
        query = select(blob_reference.c.uid, blob_reference.c.storage_key)
        query = query.where(among(blob_reference, model, uids))
        for uid, key in await connection.execute(query.order_by(blob_reference.c.storage_key)):
            found[model, uid] = (*found.get((model, uid), ()), key)
    return found


async def _names(connection: AsyncConnection, models: set[int]) -> dict[int, str]:
    query = select(registration.c.model, registration.c.model_id)
    found = await connection.execute(query.where(registration.c.model.in_(models)))
    return {row.model: row.model_id for row in found}


def _mark(
    row: Any, capture_id: UUID | None, references: tuple[str, ...], model_id: str | None
) -> Mark:
    return Mark(
        model=row.model,
        uid=row.uid,
        scope=row.scope,
        data=row.data_storage_key,
        response=row.response_storage_key,
        metadata=row.metadata_storage_key,
        sidecar=row.sidecar_storage_key,
        capture_id=capture_id,
        references=references,
        model_id=model_id,
    )
