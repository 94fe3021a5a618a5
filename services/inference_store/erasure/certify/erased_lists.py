"""The lists of what erasures erased, batch by batch, which certificates name.

A batch is recorded in the transaction that deletes its rows and marks: a crash neither loses it nor
records it twice.
"""

from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from sqlalchemy import (
    ARRAY,
    BigInteger,
    ColumnElement,
    LargeBinary,
    and_,
    any_,
    func,
    literal,
    or_,
    select,
)
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inference_store.erasure.log.keys import SigningKey
from inference_store.index.tables import erased_leaves, partition_span
from inference_store.inference.events import StorageKey, received_at_of

from .list_entries import hash_inference, hash_object

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
    values = {
        "erasure": erasure,
        "hashed_by": key.id,
        "inferences": len(entries),
        "objects": len(deleted),
        "oldest": min(times, default=None),
        "newest": max(times, default=None),
        "span": await _find_dropping(connection, times[0]) if whole_span and times else None,
        "leaves": b"".join(entries + deleted),
    }
    await connection.execute(erased_leaves.insert().values(values))


async def _find_dropping(connection: AsyncConnection, at: datetime) -> str | None:
    query = select(partition_span.c.name).where(
        partition_span.c.lo <= at, partition_span.c.hi > at, partition_span.c.state == "dropping"
    )
    name = await connection.scalar(query)
    return None if name is None else str(name)


def _match_uncertified(erasure: UUID) -> tuple[ColumnElement[bool], ...]:
    return _HERE.erasure == erasure, _HERE.certificate.is_(None)


async def find_uncertified(connection: AsyncConnection, erasure: UUID) -> Erased:
    """Return what is not certified yet."""
    query = select(
        func.coalesce(func.array_agg(_HERE.id), []),
        func.coalesce(func.sum(_HERE.inferences), 0),
        func.coalesce(func.sum(_HERE.objects), 0),
        func.min(_HERE.oldest),
        func.max(_HERE.newest),
        func.array_agg(_HERE.hashed_by.distinct()),
        func.min(_HERE.recorded_at),
        func.max(_HERE.recorded_at),
    ).where(*_match_uncertified(erasure))
    row = (await connection.execute(query)).one()
    ids, inferences, objects, oldest, newest, hashed_by, first_at, last_at = row
    return Erased(
        batches=sorted(ids),
        inferences=int(inferences),
        objects=int(objects),
        oldest=oldest,
        newest=newest,
        hashed_by=sorted(hashed_by or ()),
        first_at=first_at,
        last_at=last_at,
    )


async def count_listed(connection: AsyncConnection, erasure: UUID, *, objects: bool = False) -> int:
    """Return how many inferences, or `objects`, an erasure's batches list, certified or not."""
    counted = func.sum(_HERE.objects if objects else _HERE.inferences)
    query = select(func.coalesce(counted, 0)).where(_HERE.erasure == erasure)
    return int(await connection.scalar(query) or 0)


async def find_dropping_span(connection: AsyncConnection, erasure: UUID) -> str | None:
    """Return a span of this erasure whose partitions are not dropped yet; None if there is none."""
    query = select(_HERE.span).where(
        *_match_uncertified(erasure), _HERE.span == partition_span.c.name
    )
    name = await connection.scalar(query.where(partition_span.c.state == "dropping").limit(1))
    return None if name is None else str(name)


async def read_chunks(engine: AsyncEngine, batches: Sequence[int]) -> AsyncIterator[bytes]:
    """Yield the entries of these batches, one batch after the other."""
    async with engine.connect() as connection:
        for batch in batches:
            query = select(_HERE.leaves).where(_HERE.id == batch)
            yield bytes(await connection.scalar(query) or b"")


async def find_batches(connection: AsyncConnection, number: int) -> Sequence[int]:
    """Return the batches that a certificate names, in order."""
    query = select(_HERE.id).where(_HERE.certificate == number).order_by(_HERE.id)
    return list((await connection.execute(query)).scalars())


async def read_list(engine: AsyncEngine, number: int) -> AsyncIterator[bytes]:
    """Yield the entries that a certificate names, batch by batch."""
    async with engine.connect() as connection:
        batches = await find_batches(connection, number)
    async for chunk in read_chunks(engine, batches):
        yield chunk


async def count_certified(connection: AsyncConnection) -> int:
    """Return how many entries all certificates have."""
    query = select(func.coalesce(func.sum(_HERE.inferences + _HERE.objects), 0))
    return int(await connection.scalar(query.where(_HERE.certificate.is_not(None))) or 0)


async def find_hash_keys(connection: AsyncConnection) -> set[str]:
    """Return the ids of the keys that hashed what is certified."""
    query = select(_HERE.hashed_by).distinct().where(_HERE.certificate.is_not(None))
    return set((await connection.execute(query)).scalars())


async def find_certificates(connection: AsyncConnection, entry: bytes, at: datetime) -> list[int]:
    """Return certificates that may have the entry of an inference received at an instant."""
    query = (
        select(_HERE.certificate)
        .distinct()
        .where(
            _HERE.certificate.is_not(None),
            or_(_HERE.oldest.is_(None), and_(_HERE.oldest <= at, _HERE.newest >= at)),
            func.pg_catalog.position(_HERE.leaves, literal(entry, LargeBinary)) > 0,
        )
    )
    return sorted((await connection.execute(query)).scalars())


async def mark_certified(connection: AsyncConnection, batches: Sequence[int], number: int) -> None:
    """Let a certificate name these batches."""
    # one array: a statement has at most 32,767 parameters
    certified = erased_leaves.update().where(
        _HERE.id == any_(literal(list(batches), ARRAY(BigInteger)))
    )
    await connection.execute(certified.values(certificate=number))


async def restore_piece(
    connection: AsyncConnection, number: int, erasure: UUID, hashed_by: str, leaves: bytes
) -> None:
    """Insert a piece of a certificate's list from the bucket, because Postgres has lost it."""
    values = {"erasure": erasure, "certificate": number, "hashed_by": hashed_by, "leaves": leaves}
    letters = leaves[::33]
    objects = letters.count(b"o")
    await connection.execute(
        erased_leaves.insert().values(**values, inferences=len(letters) - objects, objects=objects)
    )
