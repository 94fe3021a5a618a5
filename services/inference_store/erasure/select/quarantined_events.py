"""Finds quarantined events, dead letters and parked ones, of what is being erased.

By uid, if an event can be decoded: of what was erased or is being erased. By a subject: as its
metadata says, inline or in its blob; if neither can be read, whether the bytes hold both the key
and the value (`searched_bytes`); also those of no registered model (`unattributed_events`). A dead
letter stays, discarded and empty, so that the accounting closes; a parked event stays, erased again
and empty. Their objects are deleted with the mark of the inference; if that was erased before, with
a mark of their own. What cannot be decoded names no object: `reconcile` finds those.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias
from uuid import UUID

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.erasure.mark import tombstones
from inference_store.erasure.request.criteria import Subject
from inference_store.index.accounting import PartitionId
from inference_store.index.tables import unsettled_event
from inference_store.index.unsettled import record_of
from inference_store.inference.errors import InvalidEvent
from inference_store.inference.events import Buckets, InferenceEvent, decode
from inference_store.inference.metadata import Metadata
from inference_store.query.filters.evaluate import Facts, evaluate
from inference_store.query.filters.typed import Predicate

from .searched_bytes import mentions_text

BATCH = 200
EventMetadata: TypeAlias = Mapping[int, Metadata]
"""The metadata of events that could be read, by the number of their row."""


@dataclass(frozen=True, slots=True)
class QuarantinedEvent:
    """A quarantined event. `event` None: it cannot be decoded."""

    id: int
    partition_id: PartitionId
    payload: bytes
    model_id: str | None
    inference_id: str | None
    is_parked: bool
    event: InferenceEvent | None

    @property
    def counter(self) -> str:
        """The name of the count that it belongs to in an estimate."""
        return "parked_events" if self.is_parked else "dead_letters"

    def describe_mark(self) -> list[str | None]:
        """Return its uid and the keys of its objects, as a batch of the ledger has them."""
        assert self.event is not None
        return [str(self.event.uid), *list_storage_keys(self.event), None]


async def read_page(
    connection: AsyncConnection,
    condition: ColumnElement[bool],
    *,
    after: int,
    buckets: Buckets,
    limit: int = BATCH,
) -> list[QuarantinedEvent]:
    """Return the next events that satisfy a condition and have bytes, in order of id."""
    here = unsettled_event.c
    query = select(unsettled_event).where(
        condition, here.id > after, func.octet_length(here.payload) > 0
    )
    rows = await connection.execute(query.order_by(here.id).limit(limit))
    return [_read_event(row, buckets) for row in rows]


def _read_event(row: Any, buckets: Buckets) -> QuarantinedEvent:
    record = record_of(row)
    try:
        event = decode(record.payload, record_time=record.time, buckets=buckets)
    except InvalidEvent:
        event = None
    return QuarantinedEvent(
        id=row.id,
        partition_id=record.partition_id,
        payload=record.payload,
        model_id=row.model_id,
        inference_id=row.inference_id,
        is_parked=row.state == "parked",
        event=event,
    )


def filter_by_subject(
    events: Iterable[QuarantinedEvent],
    subject: Subject,
    predicate: Predicate,
    metadata: EventMetadata,
) -> list[QuarantinedEvent]:
    """Return the events that mention the subject."""
    return [
        quarantined
        for quarantined in events
        if _mentions_subject(quarantined, subject, predicate, metadata.get(quarantined.id))
    ]


def _mentions_subject(
    quarantined: QuarantinedEvent, subject: Subject, predicate: Predicate, metadata: Metadata | None
) -> bool:
    if metadata is None:
        return all(
            mentions_text(quarantined.payload, text) for text in (subject.key, subject.value)
        )
    return evaluate(predicate, Facts(metadata=metadata)) is True


async def filter_erased(
    connection: AsyncConnection,
    model: int,
    events: Sequence[QuarantinedEvent],
    ids: Collection[str] = (),
) -> list[QuarantinedEvent]:
    """Return the events whose inference was erased or is being erased.

    Also those that cannot be decoded and have one of `ids`.
    """
    decoded = [quarantined for quarantined in events if quarantined.event is not None]
    identities = [
        (model, quarantined.event.uid, quarantined.event.received_at)
        for quarantined in decoded
        if quarantined.event is not None
    ]
    erased: set[tuple[int, UUID]] = (
        await tombstones.find_erased(connection, identities) if identities else set()
    )
    return [
        quarantined
        for quarantined in events
        if (
            (model, quarantined.event.uid) in erased
            if quarantined.event is not None
            else quarantined.inference_id in ids
        )
    ]


def list_storage_keys(event: InferenceEvent) -> tuple[str | None, str | None, str | None]:
    """Return the keys of its data, response and metadata."""
    data, response, metadata = (
        None if key is None else str(key) for key in (event.data, event.response, event.metadata)
    )
    return data, response, metadata
