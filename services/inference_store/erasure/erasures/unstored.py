"""Events that are not stored, dead letters and parked ones, of what is being erased.

By uid, where an event can be decoded: of what was erased or is being. By a subject: as its
metadata say, inline or in their blob; where neither can be read, whether the bytes hold both the
key and the value. A dead letter stays, discarded and empty, so that the books close; a parked
event is counted as erased again. Their objects go with the mark of the inference; where it was
erased before, with one of their own. What cannot be decoded names none: `reconcile` finds them.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias
from uuid import UUID

from sqlalchemy import Table, and_, func, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.erasure.mark import tombstones
from inference_store.index import accounting
from inference_store.index.accounting import Outcome, PartitionId
from inference_store.index.identities import among
from inference_store.index.records import record_of
from inference_store.index.tables import blob_reference, dead_letter, erasing, parked_event
from inference_store.inference.errors import InvalidEvent
from inference_store.inference.events import Buckets, InferenceEvent, decode
from inference_store.inference.metadata import Metadata
from inference_store.query.filters.evaluate import evaluate
from inference_store.query.filters.facts import Facts
from inference_store.query.filters.typed import Predicate

from .chosen import Subject
from .requests import enqueue_arrivals

BATCH = 200
TABLES = (dead_letter, parked_event)
Metadatas: TypeAlias = Mapping[int, Metadata]
"""What could be read of the metadata of events, by the number of their row."""


@dataclass(frozen=True, slots=True)
class Aside:
    """An event that is set aside. `event` None: it cannot be decoded."""

    id: int
    place: PartitionId
    payload: bytes
    inference_id: str | None
    event: InferenceEvent | None

    def mark(self) -> list[str | None]:
        """Its uid and the keys of its objects, as a batch of the ledger has them."""
        assert self.event is not None
        return [str(self.event.uid), *keys_of(self.event), None]


async def page(
    connection: AsyncConnection,
    table: Table,
    model_id: str,
    *,
    after: int,
    buckets: Buckets,
    limit: int = BATCH,
) -> list[Aside]:
    """The next of a model that still have their bytes, in order of id."""
    here = table.c
    query = select(table).where(
        here.model_id == model_id, here.id > after, func.octet_length(here.payload) > 0
    )
    rows = await connection.execute(query.order_by(here.id).limit(limit))
    return [_aside(row, buckets) for row in rows]


def _aside(row: Any, buckets: Buckets) -> Aside:
    record = record_of(row)
    try:
        event = decode(record.payload, record_time=record.time, buckets=buckets)
    except InvalidEvent:
        event = None
    return Aside(row.id, record.partition_id, record.payload, row.inference_id, event)


def of_subject(
    some: Iterable[Aside], subject: Subject, predicate: Predicate, metadata: Metadatas
) -> list[Aside]:
    """Those that tell of the subject."""
    return [each for each in some if _tells(each, subject, predicate, metadata.get(each.id))]


def _tells(aside: Aside, subject: Subject, predicate: Predicate, metadata: Metadata | None) -> bool:
    if metadata is None:
        words = (subject.key, subject.value)
        return all(word.encode("utf-8", "surrogatepass") in aside.payload for word in words)
    return evaluate(predicate, Facts(metadata=metadata)) is True


async def erased(
    connection: AsyncConnection, model: int, some: Sequence[Aside], ids: Collection[str] = ()
) -> list[Aside]:
    """Those whose inference was erased, or is being; and those by one of `ids` that cannot be
    decoded."""
    known = [each for each in some if each.event is not None]
    looked = [
        (model, each.event.uid, each.event.received_at) for each in known if each.event is not None
    ]
    gone: set[tuple[int, UUID]] = await tombstones.find(connection, looked) if looked else set()
    return [
        each
        for each in some
        if ((model, each.event.uid) in gone if each.event is not None else each.inference_id in ids)
    ]


async def take(
    connection: AsyncConnection, table: Table, some: Sequence[Aside], *, because: str
) -> list[Aside]:
    """Take the bytes of these away; those that were there. Repeatable.

    After `accounting.lock_partitions`.
    """
    ids = [each.id for each in some]
    if table is dead_letter:
        gone = await _discard(connection, ids, because)
    else:
        removed = parked_event.delete().where(parked_event.c.id.in_(ids))
        gone = set((await connection.execute(removed.returning(parked_event.c.id))).scalars())
    taken = [each for each in some if each.id in gone]
    if table is parked_event:
        changes: Mapping[PartitionId, Counter[Outcome]] = defaultdict(Counter)
        for each in taken:
            changes[each.place].update({Outcome.PARKED: -1, Outcome.ERASED_AGAIN: 1})
        await accounting.change_outcomes(connection, dict(changes))
    return taken


async def doom(
    connection: AsyncConnection, erasure: UUID, model: int, taken: Sequence[Aside]
) -> None:
    """Queue the objects that these name for deletion, with what takes them away. After the gate.

    What is stored and stays keeps its objects.
    """
    events = [each.event for each in taken if each.event is not None]
    if not events:
        return
    received = {event.uid: event.received_at for event in events}
    marked = await _marked(connection, erasure, model, received)
    erased = await tombstones.find(connection, [(model, *each) for each in received.items()])
    again = {e.uid: e for e in events if e.uid not in marked and (model, e.uid) in erased}
    arrivals = [(model, e.uid, "inference", *keys_of(e), None) for e in again.values()]
    await enqueue_arrivals(connection, arrivals, cause="erased_again")
    rows = [
        {"storage_key": key, "model": model, "uid": event.uid}
        for event in events
        if event.uid in marked
        for key in keys_of(event)
        if key is not None and key not in marked[event.uid]
    ]
    if rows:
        await connection.execute(insert(blob_reference).on_conflict_do_nothing(), rows)


def keys_of(event: InferenceEvent) -> tuple[str | None, str | None, str | None]:
    """Where its data, response and metadata are."""
    data, response, metadata = (
        None if key is None else str(key) for key in (event.data, event.response, event.metadata)
    )
    return data, response, metadata


async def _marked(
    connection: AsyncConnection, erasure: UUID, model: int, uids: Iterable[UUID]
) -> dict[UUID, Sequence[str | None]]:
    """Those that the erasure has marked, with the objects that its marks name."""
    here = erasing.c
    keys = (here.data_storage_key, here.response_storage_key, here.metadata_storage_key)
    whole = and_(here.erasure == erasure, here.scope == "inference")
    query = select(here.uid, *keys).where(whole, among(erasing, model, list(uids)))
    return {uid: named for uid, *named in await connection.execute(query)}


async def _discard(connection: AsyncConnection, ids: Sequence[int], because: str) -> set[int]:
    empty: dict[str, Any] = {
        "payload": None,
        "record_key": None,
        "headers": [],
        "inference_id": None,
    }
    values = {**empty, "detail": because, "discard_reason": because, "state": "discarded"}
    changed = update(dead_letter).where(dead_letter.c.id.in_(ids))
    changed = changed.values(**values, updated_at=func.now())
    return set((await connection.execute(changed.returning(dead_letter.c.id))).scalars())
