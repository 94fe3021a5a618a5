"""Events that are not stored, dead letters and parked ones, of what is being erased.

By uid, where an event can be decoded: of what was erased or is being. By a subject: as its
metadata say, inline or in their blob; where neither can be read, whether the bytes hold both the
key and the value. A dead letter stays, discarded and empty, so that the books close; a parked
event is counted as erased again.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias
from uuid import UUID

from sqlalchemy import Table, func, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.store import books
from inference_store.store.books import Outcome, Place
from inference_store.store.errors import InvalidEvent
from inference_store.store.events import Buckets, InferenceEvent, decode
from inference_store.store.filters.evaluate import evaluate
from inference_store.store.filters.facts import Facts
from inference_store.store.filters.typed import Truth
from inference_store.store.metadata import read_metadata
from inference_store.store.records import record_of
from inference_store.store.retention import tombstones
from inference_store.store.tables import dead_letter, parked_event

from .chosen import Subject

BATCH = 200
TABLES = (dead_letter, parked_event)
Reading: TypeAlias = Callable[[InferenceEvent], bytes | None]
"""The metadata of an event, from its blob; None: it cannot be read."""


@dataclass(frozen=True, slots=True)
class Aside:
    """An event that is set aside. `event` None: it cannot be decoded."""

    id: int
    place: Place
    payload: bytes
    inference_id: str | None
    event: InferenceEvent | None

    def mark(self) -> list[str | None]:
        """Its uid and the keys of its objects, as a batch of the ledger has them."""
        assert self.event is not None
        keys = (self.event.data, self.event.response, self.event.metadata)
        named = [None if key is None else str(key) for key in keys]
        return [str(self.event.uid), *named, None]


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
    return Aside(row.id, record.place, record.payload, row.inference_id, event)


def of_subject(
    some: Iterable[Aside], subject: Subject, truth: Truth, metadata_of: Reading
) -> list[Aside]:
    """Those that tell of the subject."""
    return [each for each in some if _tells(each, subject, truth, metadata_of)]


def _tells(aside: Aside, subject: Subject, truth: Truth, metadata_of: Reading) -> bool:
    metadata = None if aside.event is None else metadata_of(aside.event)
    if metadata is None:
        words = (subject.key, subject.value)
        return all(word.encode("utf-8", "surrogatepass") in aside.payload for word in words)
    return evaluate(truth, Facts(metadata=read_metadata(metadata))) is True


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
) -> int:
    """Take the bytes of these away; how many. Repeatable."""
    if not some:
        return 0
    # The books first, as the ingester does: neither then holds what the other waits for.
    await books.lock(connection, {each.place for each in some})
    ids = [each.id for each in some]
    if table is dead_letter:
        return await _discard(connection, ids, because)
    removed = parked_event.delete().where(parked_event.c.id.in_(ids))
    gone = set((await connection.execute(removed.returning(parked_event.c.id))).scalars())
    changes: Mapping[Place, Counter[Outcome]] = defaultdict(Counter)
    for each in some:
        if each.id in gone:
            changes[each.place].update({Outcome.PARKED: -1, Outcome.ERASED_AGAIN: 1})
    await books.change(connection, dict(changes))
    return len(gone)


async def _discard(connection: AsyncConnection, ids: Sequence[int], because: str) -> int:
    empty: dict[str, Any] = {
        "payload": None,
        "record_key": None,
        "headers": [],
        "inference_id": None,
    }
    values = {**empty, "detail": because, "discard_reason": because, "state": "discarded"}
    changed = update(dead_letter).where(dead_letter.c.id.in_(ids))
    return (await connection.execute(changed.values(**values, updated_at=func.now()))).rowcount
