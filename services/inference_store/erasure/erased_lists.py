"""The lists of what erasures erased, batch by batch, which certificates name.

A batch is recorded in the transaction that deletes its rows and marks: a crash neither loses it
nor records it twice. Its list is in Postgres until a certificate names it, and then in the bucket
alone, below `certificates/leaves/<root>/` in pieces, of which the root names each.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import sha256
from itertools import count
from typing import Any, Final, NamedTuple
from uuid import UUID

from sqlalchemy import BigInteger, cast, func, select
from sqlalchemy.dialects.postgresql import aggregate_order_by, insert
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inference_store.erasure.log import SignedDocument, SigningKey, read_members
from inference_store.erasure.pending_deletions import PendingDeletion, select_marks
from inference_store.erasure.progress import Erasure, advance_erasure, find_state
from inference_store.index import registrations
from inference_store.index.sidecars import among_keys
from inference_store.index.tables import (
    blob_reference,
    certificate,
    erased_leaves,
    erasing,
    partition_span,
)
from inference_store.index.tables import erasure as erasure_table
from inference_store.inference.errors import BlobMissing
from inference_store.inference.events import StorageKey, parse_stored, received_at_of
from inference_store.inference.layout import CERTIFICATES
from inference_store.objects import Blobs

# Merkle trees as RFC 6962 hashes them (section 2.1), grown leaf by leaf: a tree of any size takes
# the memory of its height.

_LEAF, _NODE = b"\0", b"\1"


class _Subtree(NamedTuple):
    """A complete subtree; `proved`: it has the leaf that a proof is for."""

    height: int
    hash: bytes
    proved: bool


@dataclass
class MerkleTree:
    """A tree that grows from left to right; `proving`: the leaf to prove, `index`: its place."""

    proving: bytes | None = None
    index: int | None = None
    size: int = 0
    _stack: list[_Subtree] = field(default_factory=list)
    _path: list[bytes] = field(default_factory=list)

    def add(self, entry: bytes) -> None:
        """Add a leaf."""
        proved = entry == self.proving and self.index is None
        self.index = self.size if proved else self.index
        grown = _Subtree(0, hash_leaf(entry), proved)
        self.size += 1
        while self._stack and self._stack[-1].height == grown.height:
            grown = self._join(self._stack.pop(), grown, self._path)
        self._stack.append(grown)

    def root(self) -> bytes:
        """Return the root of what was added so far."""
        return self._join_all()[0]

    def proof(self) -> Sequence[bytes]:
        """Return the hashes beside the path from the leaf `proving` to the root, from below."""
        if self.index is None:
            raise IndexError("there is no such leaf")
        return self._join_all()[1]

    def _join_all(self) -> tuple[bytes, Sequence[bytes]]:
        if not self._stack:
            return sha256().digest(), ()
        *others, last = self._stack
        path = list(self._path)
        for subtree in reversed(others):
            last = self._join(subtree, last, path)
        return last.hash, path

    @staticmethod
    def _join(left: _Subtree, right: _Subtree, path: list[bytes]) -> _Subtree:
        if left.proved:
            path.append(right.hash)
        elif right.proved:
            path.append(left.hash)
        hash = sha256(_NODE + left.hash + right.hash).digest()
        return _Subtree(left.height + 1, hash, left.proved or right.proved)


def hash_leaf(entry: bytes) -> bytes:
    """Return the hash of a leaf, which differs from that of any node."""
    return sha256(_LEAF + entry).digest()


def is_proved(entry: bytes, index: int, size: int, proof: Sequence[bytes], root: bytes) -> bool:
    """Return whether the proof leads from the entry, as leaf `index` of `size`, to the root."""
    if not 0 <= index < size:
        return False
    position, last, hash = index, size - 1, hash_leaf(entry)
    for beside in proof:
        if last == 0:
            return False
        if position & 1 or position == last:
            hash = sha256(_NODE + beside + hash).digest()
            while not position & 1 and position:
                position, last = position >> 1, last >> 1
        else:
            hash = sha256(_NODE + hash + beside).digest()
        position, last = position >> 1, last >> 1
    return last == 0 and hash == root


# What went of an inference, by the scope of its erasure; and an object.
LETTERS: Final = {"inference": b"i", "input": b"d", "response": b"r", "truth": b"t"}
OBJECT: Final = b"o"
ENTRY_BYTES: Final = 33
_HERE = erased_leaves.c


@dataclass(frozen=True, slots=True)
class Erased:
    """The batches of an erasure that no certificate names yet, and their sums."""

    batches: Sequence[int]
    inferences: int
    objects: int
    oldest: datetime | None
    newest: datetime | None
    hashed_by: Sequence[str]
    first_at: datetime | None
    last_at: datetime | None


# Of a piece of a list: about 250,000 entries.
_PIECE_BYTES = ENTRY_BYTES * 250_000


async def record_erased(
    connection: AsyncConnection,
    key: SigningKey,
    erasure: Erasure,
    done: Sequence[PendingDeletion],
    doomed: Set[str],
    *,
    whole_span: bool = False,
) -> None:
    """Record what a batch erased, after its rows and pending deletions. `doomed`: the claimed
    keys. What a restored backup erased again is in a certificate already."""
    done = [mark for mark in done if not mark.was_certified]
    if not done:
        return
    deleted = {key for mark in done for key in mark.doomed if key in doomed}
    foreign = {key for mark in done for key in mark.doomed if not mark.owns(key)}
    if shared := deleted & foreign:
        deleted -= await _find_still_named(connection, erasure.id, shared)
    await record_batch(
        connection,
        key,
        erasure.id,
        scope=erasure.scope,
        uids=sorted(mark.uid for mark in done),
        objects=map(parse_stored, sorted(deleted)),
        whole_span=whole_span,
    )


async def _find_still_named(
    connection: AsyncConnection, erasure: UUID, keys: Iterable[str]
) -> set[str]:
    """Return the keys that a later batch of the erasure points to as well: that batch records
    them."""
    query = select(blob_reference.c.storage_key).where(
        among_keys(blob_reference.c.storage_key, keys),
        select_marks(blob_reference)
        .where(erasing.c.erasure == erasure, erasing.c.certified_at.is_(None))
        .exists(),
    )
    return set((await connection.execute(query)).scalars())


async def record_batch(
    connection: AsyncConnection,
    key: SigningKey,
    erasure: UUID,
    *,
    scope: str,
    uids: Sequence[UUID],
    objects: Iterable[StorageKey],
    whole_span: bool = False,
) -> None:
    """Record what one batch erased. `whole_span`: its partitions are dropped afterwards."""
    entries = [hash_inference(key, scope, uid) for uid in uids]
    deleted = [hash_object(key, storage_key) for storage_key in objects]
    times = [received_at_of(uid) for uid in uids]
    span = None
    if whole_span and times:
        here, at = partition_span.c, times[0]
        query = select(here.name).where(here.lo <= at, here.hi > at, here.state == "dropping")
        span = await connection.scalar(query)
    values = {
        "erasure": erasure,
        "hashed_by": key.id,
        "inferences": len(entries),
        "objects": len(deleted),
        "oldest": min(times, default=None),
        "newest": max(times, default=None),
        "span": span,
        "leaves": b"".join(entries + deleted),
    }
    await connection.execute(erased_leaves.insert().values(values))


def hash_inference(key: SigningKey, scope: str, uid: UUID) -> bytes:
    """Return the entry of an inference, or of its input or its response alone."""
    return LETTERS[scope] + key.keyed_hash("inference", uid.bytes)


def hash_object(key: SigningKey, storage_key: StorageKey) -> bytes:
    """Return the entry of an object, by its bucket and its key."""
    return OBJECT + key.keyed_hash("object", str(storage_key).encode("utf-8", "surrogatepass"))


def split_entries(chunk: bytes) -> Iterator[bytes]:
    """Yield the entries of a chunk. Raises ValueError if the last one is incomplete."""
    if len(chunk) % ENTRY_BYTES:
        raise ValueError(f"{len(chunk)} bytes are no whole number of entries")
    return (chunk[at : at + ENTRY_BYTES] for at in range(0, len(chunk), ENTRY_BYTES))


async def find_uncertified(connection: AsyncConnection, erasure: UUID) -> Erased:
    """Return what is not certified yet."""
    keys = _HERE.hashed_by
    query = select(
        func.array_agg(aggregate_order_by(_HERE.id, _HERE.id)),
        cast(func.coalesce(func.sum(_HERE.inferences), 0), BigInteger),
        cast(func.coalesce(func.sum(_HERE.objects), 0), BigInteger),
        func.min(_HERE.oldest),
        func.max(_HERE.newest),
        func.array_agg(aggregate_order_by(keys.distinct(), keys)),
        func.min(_HERE.recorded_at),
        func.max(_HERE.recorded_at),
    ).where(_HERE.erasure == erasure)
    batches, inferences, objects, oldest, newest, hashed_by, first_at, last_at = (
        await connection.execute(query)
    ).one()
    sums = inferences, objects, oldest, newest
    return Erased(batches or [], *sums, hashed_by or [], first_at, last_at)


async def find_dropping_span(connection: AsyncConnection, erasure: UUID) -> str | None:
    """Return a span of this erasure whose partitions are not dropped yet; None if there is none."""
    query = select(_HERE.span).where(_HERE.erasure == erasure, _HERE.span == partition_span.c.name)
    name = await connection.scalar(query.where(partition_span.c.state == "dropping").limit(1))
    return None if name is None else str(name)


async def _read_batches(engine: AsyncEngine, batches: Sequence[int]) -> AsyncIterator[bytes]:
    async with engine.connect() as connection:
        for batch in batches:
            query = select(_HERE.leaves).where(_HERE.id == batch)
            yield bytes(await connection.scalar(query) or b"")


async def apply_signed(
    connection: AsyncConnection, body: Mapping[str, Any], _: datetime, __: str
) -> SignedDocument:
    """Store a signed document; its erasure, if it has one, is certified. Repeatable."""
    signed = read_members(body)
    document = signed.document
    about = document.get("erasure")
    id = None if about is None else UUID(about["id"])
    inserted = insert(certificate).values(
        number=document["number"],
        kind=signed.kind,
        erasure=id,
        model=await _find_model(connection, about),
        issued_at=datetime.fromisoformat(document["issued_at"]),
        signed=signed.text,
        hash=signed.hash,
    )
    is_new = (await connection.execute(inserted.on_conflict_do_nothing())).rowcount > 0
    if is_new and id is not None:
        certified = erasure_table.update().where(erasure_table.c.id == id)
        await connection.execute(certified.values(certificate=document["number"]))
        await _remove_certified(connection, id, document["leaves"]["count"])
        if await find_state(connection, id) == "certifying":
            await advance_erasure(connection, id, "certified")
    return signed


async def _find_model(connection: AsyncConnection, about: Mapping[str, Any] | None) -> int | None:
    if about is None or len(about["model_ids"]) != 1:
        return None
    models = await registrations.find_by_ids(connection, about["model_ids"])
    return next((registration.model for registration in models.values()), None)


async def _remove_certified(connection: AsyncConnection, erasure: UUID, count: int) -> None:
    """Remove the first batches of an erasure, of `count` entries: a certificate names them.

    Marks that a replay finds left were erased before it. Repeatable.
    """
    listed = func.sum(_HERE.inferences + _HERE.objects).over(order_by=_HERE.id)
    batches = select(_HERE.id, listed.label("listed")).where(_HERE.erasure == erasure).subquery()
    named = select(batches.c.id).where(batches.c.listed <= count)
    await connection.execute(erased_leaves.delete().where(_HERE.id.in_(named)))
    marked = erasing.update().where(erasing.c.erasure == erasure, erasing.c.certified_at.is_(None))
    await connection.execute(marked.values(certified_at=func.now()))


def _piece_key(blobs: Blobs, root: str, number: int) -> StorageKey:
    return StorageKey(blobs.buckets.default, f"{CERTIFICATES}leaves/{root}/{number:06}")


async def read_list(blobs: Blobs, root: str, *, size: int = 0) -> AsyncIterator[bytes]:
    """Yield the list with a root, piece by piece; `size`: how many entries it has at least. Raises
    BlobMissing if fewer are there; ObjectStoreUnavailable."""
    left = size * ENTRY_BYTES
    for number in count(1):
        key = _piece_key(blobs, root, number)
        try:
            piece = await asyncio.to_thread(blobs.get, key, limit=2 * _PIECE_BYTES)
        except BlobMissing:
            if left > 0:
                raise
            return
        left -= len(piece)
        yield piece


async def write_list(engine: AsyncEngine, blobs: Blobs, batches: Sequence[int]) -> bytes:
    """Write the entries of these batches, piece by piece, and return the root over them.

    They are read twice, because the root names the pieces. Raises ObjectStoreUnavailable.
    """
    tree = MerkleTree()
    async for chunk in _read_batches(engine, batches):
        for entry in split_entries(chunk):
            tree.add(entry)
    root = tree.root()
    number, waiting = 0, b""
    async for chunk in _read_batches(engine, batches):
        waiting += chunk
        while len(waiting) >= _PIECE_BYTES:
            number += 1
            await _put_piece(blobs, root, number, waiting[:_PIECE_BYTES])
            waiting = waiting[_PIECE_BYTES:]
    if waiting:
        await _put_piece(blobs, root, number + 1, waiting)
    return root


async def _put_piece(blobs: Blobs, root: bytes, number: int, piece: bytes) -> None:
    key, content_type = _piece_key(blobs, root.hex(), number), "application/octet-stream"
    if not await asyncio.to_thread(blobs.exists, key):
        await asyncio.to_thread(blobs.put_new, key, piece, content_type=content_type)
