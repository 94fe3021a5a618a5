"""Finds quarantined events, dead letters and parked ones, of what is being erased.

By uid, if an event can be decoded: of what was erased or is being erased. By a subject: as its
metadata says, inline or in its blob; if neither can be read, whether the bytes hold both the key
and the value. A dead letter stays, discarded and empty, so that the accounting closes; a parked
event stays, erased again and empty. Their objects are deleted with the mark of the inference; if
that was erased before, with a mark of their own. What cannot be decoded names no object:
`reconcile` finds those.

Some belong to no model of an erasure: what broke off before its model, and events of models that
are not registered. Who requests an erasure of a subject decides how far it reaches. Over
everything, by someone who may erase everything: all of them. By the same person, over given
models: those without a model whose bytes name one of these models. By anyone else: none, because
they may belong to any model. An event of a model that is not registered is never one of given
models.
"""

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias
from uuid import UUID

from sqlalchemy import ColumnElement, false, func, or_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.erasure.mark import tombstones
from inference_store.erasure.requests import Subject
from inference_store.index.accounting import PartitionId
from inference_store.index.tables import unsettled_event
from inference_store.index.unsettled import record_of
from inference_store.inference.errors import BlobForbidden, BlobMissing, BlobTooLarge, InvalidEvent
from inference_store.inference.events import Buckets, InferenceEvent, StorageKey, decode
from inference_store.inference.metadata import Metadata, read_metadata
from inference_store.objects import Blobs
from inference_store.query.filters.evaluate import Facts, evaluate
from inference_store.query.filters.typed import Predicate

_ESCAPE = re.compile(r"\\u[0-9a-f]{4}")
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


_BYTES = 1024 * 1024
Reach: TypeAlias = Literal["all", "named"]
MEMBER: Final = "unattributed"
"""The member of the criteria that stores the reach, so that a replay erases the same."""


@dataclass(frozen=True, slots=True)
class UnattributedSearch:
    """A search for quarantined events beside those of the models of an erasure. `reach` None:
    there are none for it."""

    reach: Reach | None
    model_ids: frozenset[str]
    """The models of the erasure that are registered."""

    def match(self) -> ColumnElement[bool]:
        """Return the condition of the rows to read. `filter_by_subject` checks their bytes."""
        here = unsettled_event.c.model_id
        match self.reach:
            case "all":
                return or_(here.is_(None), here.not_in(sorted(self.model_ids)))
            case "named":
                return here.is_(None)
            case None:
                return false()

    def filter_by_subject(
        self,
        events: Iterable[QuarantinedEvent],
        subject: Subject,
        predicate: Predicate,
        metadata: EventMetadata,
    ) -> list[QuarantinedEvent]:
        """Return the events that mention the subject and that the erasure reaches."""
        about_it = filter_by_subject(events, subject, predicate, metadata)
        return [quarantined for quarantined in about_it if self._reaches(quarantined)]

    def _reaches(self, quarantined: QuarantinedEvent) -> bool:
        if self.reach == "all" or quarantined.model_id in self.model_ids:
            return True
        return any(names_text(quarantined.payload, model_id) for model_id in self.model_ids)


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


def load_metadata(blobs: Blobs, events: Sequence[QuarantinedEvent]) -> EventMetadata:
    """Return metadata by event id, of those that can be decoded and read.

    Blocks. Raises ObjectStoreUnavailable.
    """
    metadata_by_id = (
        (quarantined.id, _read_event_metadata(blobs, quarantined.event))
        for quarantined in events
        if quarantined.event is not None
    )
    return {id: metadata for id, metadata in metadata_by_id if metadata is not None}


def mentions_text(payload: bytes, text: str) -> bool:
    """Return whether bytes hold a text: in UTF-8, or escaped in JSON, also in a JSON string that
    has JSON."""
    return any(
        _encode(form) in payload for outer in _list_forms(text) for form in _list_forms(outer)
    )


def names_text(payload: bytes, text: str) -> bool:
    """Return whether bytes hold a text as a whole JSON string."""
    return any(_encode(f'"{form}"') in payload for form in _list_forms(text))


def _list_forms(text: str) -> Iterator[str]:
    """Yield a text, and how JSON may escape it: hexadecimal digits may be in either case."""
    escaped = json.dumps(text)[1:-1]
    yield text
    yield json.dumps(text, ensure_ascii=False)[1:-1]
    yield escaped
    yield _ESCAPE.sub(lambda match: "\\u" + match[0][2:].upper(), escaped)


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def list_storage_keys(event: InferenceEvent) -> tuple[str | None, str | None, str | None]:
    """Return the keys of its data, response and metadata."""
    data, response, metadata = (
        None if key is None else str(key) for key in (event.data, event.response, event.metadata)
    )
    return data, response, metadata


def _read_event_metadata(blobs: Blobs, event: InferenceEvent) -> Metadata | None:
    blob = _read_blob(blobs, event.inline_metadata, event.metadata)
    if blob is None:
        return None
    return read_metadata(blob, response=_read_blob(blobs, event.inline_response, event.response))


def _read_blob(blobs: Blobs, inline: bytes | None, storage_key: StorageKey | None) -> bytes | None:
    if inline is not None:
        return inline
    if storage_key is None:
        return b""
    try:
        return blobs.get(storage_key, limit=_BYTES)
    except (BlobMissing, BlobForbidden, BlobTooLarge):
        return None


def build_search(criteria: Mapping[str, Any], model_ids: Collection[str]) -> UnattributedSearch:
    """Return the search of an erasure of these registered models."""
    return UnattributedSearch(criteria.get(MEMBER), frozenset(model_ids))


def has_searched_all(criteria: Mapping[str, Any]) -> bool:
    """Return whether an erasure by these criteria searches every quarantined event."""
    return criteria.get(MEMBER) == "all"
