"""Finds quarantined events, dead letters and parked ones, of what is being erased.

By uid, if an event can be decoded or names one, as ground truth may: of what was erased or is being
erased. By a subject: as its
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

import asyncio
import json
import re
from collections import Counter, defaultdict
from collections.abc import (
    AsyncIterator,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final, Literal, TypeAlias
from uuid import UUID

from sqlalchemy import ColumnElement, and_, case, false, func, null, or_, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.erasure import pending_deletions
from inference_store.erasure.held_deletions import HeldRow
from inference_store.erasure.holds import Hold, judge, list_in_force, resolve_filter
from inference_store.erasure.locks import fence_exclusive
from inference_store.erasure.pending_deletions import Arrival, enqueue_arrivals
from inference_store.erasure.progress import add_erased
from inference_store.erasure.requests import Subject, build_predicate, find_subject
from inference_store.index import accounting, registrations
from inference_store.index.accounting import Outcome, PartitionId
from inference_store.index.key_registry import Models
from inference_store.index.registrations import Registration
from inference_store.index.sidecars import among
from inference_store.index.tables import blob_reference, erasing, unsettled_event
from inference_store.index.unsettled import record_of
from inference_store.index.writing import Indexable
from inference_store.inference.errors import (
    BlobForbidden,
    BlobMissing,
    BlobTooLarge,
    Invalid,
    InvalidEvent,
)
from inference_store.inference.events import (
    Buckets,
    InferenceEvent,
    StorageKey,
    decode,
)
from inference_store.inference.metadata import Metadata, read_metadata
from inference_store.inference.task_types import Predictions
from inference_store.objects import Blobs
from inference_store.query.filters import typed
from inference_store.query.filters.certain import find_doubts
from inference_store.query.filters.typed import Predicate
from inference_store.query.lookup import parse_uid
from inference_store.query.unstored import evaluate

_ESCAPE = re.compile(r"\\u[0-9a-f]{4}")
BATCH = 200
# What only the index or the response has, and so is unknown of an event alone.
_NOT_IN_EVENTS: Final = frozenset(
    {"project_id", "indexed_at", "top_label", "top_score", "prediction_count", "problem"}
    | {"revision", "data_deleted_at"}
)


@dataclass(frozen=True, slots=True)
class QuarantinedEvent:
    """A quarantined event. `event` None: it cannot be decoded; `metadata` None: it was not read, or
    cannot be."""

    id: int
    payload: bytes
    model_id: str | None
    inference_id: str | None
    is_parked: bool
    event: InferenceEvent | None
    metadata: Metadata | None = None

    @property
    def uid(self) -> UUID | None:
        """Its inference's, if it says which."""
        if self.event is not None:
            return self.event.uid
        with suppress(Invalid):
            return parse_uid(self.inference_id or "")
        return None

    @property
    def item(self) -> Indexable:
        """Its inference, as if it had no response."""
        assert self.event is not None
        model = Registration.model_construct(model=0, model_id=self.event.model_id, project_id=None)
        return Indexable(self.event, model, self.metadata or Metadata(), Predictions(None))

    def describe_mark(self) -> list[str | None]:
        """Return its uid and the keys of its objects, as a batch of the ledger has them."""
        assert self.event is not None
        keys = (self.event.data, self.event.response, self.event.metadata)
        return [str(self.event.uid), *(None if key is None else str(key) for key in keys), None]


_BYTES = 1024 * 1024
Reach: TypeAlias = Literal["all", "named"]
MEMBER: Final = "unattributed"
"""The member of the criteria that stores the reach, so that a replay erases the same."""


Connect: TypeAlias = Callable[[], AbstractAsyncContextManager[AsyncConnection]]
"""Opens the connection for one step: blobs are read with none."""


async def iterate_pages(
    connect: Connect, condition: ColumnElement[bool], buckets: Buckets
) -> AsyncIterator[list[QuarantinedEvent]]:
    """Yield the events that satisfy a condition and have bytes, page by page, in order of id."""
    here, after = unsettled_event.c, 0
    query = select(unsettled_event).where(condition, func.octet_length(here.payload) > 0)
    query = query.order_by(here.id).limit(BATCH)
    while True:
        async with connect() as connection:
            rows = (await connection.execute(query.where(here.id > after))).all()
        if not rows:
            return
        yield [_read_event(row, buckets) for row in rows]
        after = rows[-1].id


async def iterate_mentions(
    connect: Connect,
    blobs: Blobs,
    criteria: Mapping[str, Any],
    model_ids: Collection[str],
    condition: ColumnElement[bool],
    *,
    types_of: Models = (),
) -> AsyncIterator[list[QuarantinedEvent]]:
    """Yield, page by page, the events of a condition that mention the subject of an erasure and
    that it reaches, with their metadata.

    `model_ids`: the models of the erasure that are registered; `types_of`: the models whose types
    of the subject's key count; none: any type does. Raises ObjectStoreUnavailable, OutOfTime.
    """
    subject, reach = find_subject(criteria), criteria.get(MEMBER)
    if subject is None:
        return
    async with connect() as connection:
        predicate = await build_predicate(connection, types_of, criteria)
    async for page in iterate_pages(connect, condition, blobs.buckets):
        loaded = await asyncio.to_thread(load_metadata, blobs, page)
        async with connect() as connection:
            events = await filter_by_subject(connection, loaded, subject, predicate)
        yield [item for item in events if _is_reached(item, reach, model_ids)]


def match_unattributed(
    criteria: Mapping[str, Any], model_ids: Collection[str]
) -> ColumnElement[bool]:
    """Match the events that an erasure of these registered models may reach beside theirs."""
    here = unsettled_event.c.model_id
    match criteria.get(MEMBER):
        case "all":
            return or_(here.is_(None), here.not_in(sorted(model_ids)))
        case "named":
            return here.is_(None)
        case _:
            return false()


def _is_reached(
    quarantined: QuarantinedEvent, reach: Reach | None, model_ids: Collection[str]
) -> bool:
    if reach == "all" or quarantined.model_id in model_ids:
        return True
    return any(names_text(quarantined.payload, model_id) for model_id in model_ids)


def _read_event(row: Any, buckets: Buckets) -> QuarantinedEvent:
    record = record_of(row)
    try:
        event = decode(record.payload, record_time=record.time, buckets=buckets)
    except InvalidEvent:
        event = None
    return QuarantinedEvent(
        id=row.id,
        payload=record.payload,
        model_id=row.model_id,
        inference_id=row.inference_id,
        is_parked=row.state == "parked",
        event=event,
    )


async def filter_by_subject(
    connection: AsyncConnection,
    events: Sequence[QuarantinedEvent],
    subject: Subject,
    predicate: Predicate,
) -> list[QuarantinedEvent]:
    """Return the events that mention the subject. Raises OutOfTime."""
    readable = [item for item in events if item.event is not None and item.metadata is not None]
    answers = await evaluate(connection, [item.item for item in readable], [predicate])
    # what cannot be evaluated is searched like what cannot be decoded
    known = zip(readable, answers, strict=True)
    mentions = {item.id: bool(truths[0]) for item, truths in known if truths is not None}
    texts = (subject.key, subject.value)
    return [
        item
        for item in events
        if (
            mentions[item.id]
            if item.id in mentions
            else all(mentions_text(item.payload, text) for text in texts)
        )
    ]


async def filter_erased(
    connection: AsyncConnection,
    model: int,
    events: Sequence[QuarantinedEvent],
    ids: Collection[str] = (),
) -> list[QuarantinedEvent]:
    """Return the events whose inference was erased or is being erased.

    Also those that cannot be decoded and have one of `ids`.
    """
    uids = {item.id: item.uid for item in events}
    identities = [(model, uid) for uid in uids.values() if uid is not None]
    erased = await pending_deletions.find_erased(connection, identities)
    return [
        item
        for item in events
        if (item.event is None and item.inference_id in ids) or (model, uids[item.id]) in erased
    ]


def load_metadata(blobs: Blobs, events: Sequence[QuarantinedEvent]) -> list[QuarantinedEvent]:
    """Return the events, with the metadata of those that can be decoded and read.

    Blocks. Raises ObjectStoreUnavailable.
    """
    loaded = []
    for item in events:
        event, metadata = item.event, None
        blob = None if event is None else _read_blob(blobs, event.inline_metadata, event.metadata)
        if event is not None and blob is not None:
            response = _read_blob(blobs, event.inline_response, event.response)
            metadata = read_metadata(blob, response=response)
        loaded.append(replace(item, metadata=metadata))
    return loaded


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


def _read_blob(blobs: Blobs, inline: bytes | None, storage_key: StorageKey | None) -> bytes | None:
    if inline is not None:
        return inline
    if storage_key is None:
        return b""
    try:
        return blobs.get(storage_key, limit=_BYTES)
    except (BlobMissing, BlobForbidden, BlobTooLarge):
        return None


def has_searched_all(criteria: Mapping[str, Any]) -> bool:
    """Return whether an erasure by these criteria searches every quarantined event."""
    return criteria.get(MEMBER) == "all"


# Removes quarantined events that no hold protects, and queues their objects for deletion.
#
# Of their response only the metadata is read, and it may be out of reach: what is unknown
# protects. The ledger has which ones go before: after a restore they are removed at the same place
# among the holds, and one that was placed later does not bring them back.

Body: TypeAlias = dict[str, Any]
_HERE = unsettled_event.c


async def split_by_hold(
    connection: AsyncConnection,
    events: Sequence[QuarantinedEvent],
    *,
    model: int | None,
    since: datetime | None = None,
    going: Collection[UUID] = (),
) -> tuple[list[QuarantinedEvent], list[HeldRow]]:
    """Return the events that no hold protects, and the others, to be recorded. Binding after the
    fence.

    What is unknown protects. There is one exception: if an erasure that is in force `since` then
    has erased the inference, with the blobs that would tell, or it is among `going`, a hold that is
    older than the erasure has been applied before. `model` None: they are of no registered model,
    and one without a model may be of any, so the holds of every model protect it.
    """
    of_models = None if model is None else [model]
    current_holds = await list_in_force(connection, of_models) if events else []
    if not current_holds:
        return list(events), []
    names = await registrations.names(connection, {hold.model for hold in current_holds})
    uids = {item.id: item.event.uid for item in events if item.event is not None}
    erased = set(going)
    if uids and model is not None and since is not None:
        erased |= await pending_deletions.find_since(connection, model, [*uids.values()], since)
    items = [item.item for item in events if item.event is not None]
    protects = dict(zip(uids, await judge(connection, current_holds, items), strict=True))
    free: list[QuarantinedEvent] = []
    held: list[HeldRow] = []
    for quarantined in events:
        is_erased = uids.get(quarantined.id) in erased
        for hold in current_holds:
            if not _may_be_of(quarantined, hold, names):
                continue
            # None if it cannot be told: the event can be neither decoded nor read
            answer = protects.get(quarantined.id, {}).get(hold.id)
            if answer is not None and not _is_decidable(hold, quarantined.metadata is not None):
                answer = None
            is_younger = since is not None and hold.in_force_at > since
            if answer or (answer is None and (is_younger or not is_erased)):
                uid = str(UUID(int=quarantined.id))
                held.append([uid, str(hold.id), hold.revision, None, None, None, None])
                break
        else:
            free.append(quarantined)
    return free, held


def _may_be_of(quarantined: QuarantinedEvent, hold: Hold, names: Mapping[int, str]) -> bool:
    """Return whether the event may be of the hold's model, which may be registered by now."""
    if hold.model is None or quarantined.model_id is None:
        return True
    return names.get(hold.model) in (None, quarantined.model_id)


def _is_decidable(hold: Hold, has_metadata: bool) -> bool:
    predicate = resolve_filter(hold.filter)
    doubts = find_doubts(predicate)
    if "predictions" in doubts or ("metadata" in doubts and not has_metadata):
        return False
    properties = {
        node.name for node in typed.iterate_nodes(predicate) if isinstance(node, typed.Property)
    }
    return properties.isdisjoint(_NOT_IN_EVENTS)


def describe_removal(
    erasure: UUID, model_id: str | None, events: Sequence[QuarantinedEvent]
) -> Body:
    """Return the body of an entry `quarantine_erased`: the numbers of rows, with the uids and the
    keys of the objects of those that can be decoded.

    `model_id` None: they are of no registered model, and their objects become orphans.
    """
    rows = [
        [item.id, *(item.describe_mark() if item.event is not None and model_id else ())]
        for item in events
    ]
    return {"erasure": str(erasure), "model_id": model_id, "rows": rows}


async def apply_removal(
    connection: AsyncConnection, body: Mapping[str, Any], _: datetime, __: str
) -> int:
    """Remove the bytes of these events, and return how many there were. Repeatable.

    Their erasure cannot be cancelled any more.
    """
    number = UUID(body["erasure"])
    marks = {id: mark for id, *mark in body["rows"]}
    # The offset accounting comes first, as in the ingester: the two cannot deadlock.
    place = (_HERE.cluster, _HERE.topic, _HERE.epoch, _HERE.partition)
    places = await connection.execute(select(*place).distinct().where(_HERE.id.in_(list(marks))))
    await accounting.lock_partitions(connection, {PartitionId(*row) for row in places})
    await fence_exclusive(connection)
    removed = await _remove(connection, list(marks), f"erased by the erasure {number}")
    if body["model_id"] is not None:
        model = await registrations.ensure(connection, body["model_id"])
        decoded = (marks[id] for id in sorted(removed) if marks[id])
        arrivals = [(model, UUID(uid), "inference", *keys) for uid, *keys in decoded]
        await _enqueue_objects(connection, number, model, arrivals)
    await add_erased(connection, number, table_rows={unsettled_event.name: len(removed)})
    return len(removed)


async def _remove(connection: AsyncConnection, ids: Sequence[int], because: str) -> set[int]:
    """Empty the rows: a parked event is erased again, a dead letter discarded."""
    settled = case((_HERE.state == "parked", "erased_again"), else_="discarded")
    changed = unsettled_event.update().where(_HERE.id.in_(ids), _HERE.payload.is_not(None))
    changed = changed.values(
        payload=None,
        record_key=None,
        headers=[],
        inference_id=None,
        state=settled,
        detail=because,
        discard_reason=because,
        missing=null(),
        next_attempt_at=null(),
        updated_at=func.now(),
    )
    place = (_HERE.cluster, _HERE.topic, _HERE.epoch, _HERE.partition)
    removed: set[int] = set()
    changes: Mapping[PartitionId, Counter[Outcome]] = defaultdict(Counter)
    for id, state, *partition_id in await connection.execute(
        changed.returning(_HERE.id, _HERE.state, *place)
    ):
        removed.add(id)
        if state == "erased_again":
            moved = {Outcome.PARKED: -1, Outcome.ERASED_AGAIN: 1}
            changes[PartitionId(*partition_id)].update(moved)
    await accounting.change_outcomes(connection, dict(changes))
    return removed


async def _enqueue_objects(
    connection: AsyncConnection, erasure: UUID, model: int, arrivals: Sequence[Arrival]
) -> None:
    """Queue the objects that removed events name for deletion, in the transaction that removes
    them.

    Call it after the fence. An inference that is stored and stays keeps its objects.
    """
    if not arrivals:
        return
    marked = await _find_marked(connection, erasure, model, [uid for _, uid, *_ in arrivals])
    identities = [(model, uid) for _, uid, *_ in arrivals]
    erased = await pending_deletions.find_erased(connection, identities)
    again = {
        arrival[1]: arrival
        for arrival in arrivals
        if arrival[1] not in marked and (model, arrival[1]) in erased
    }
    await enqueue_arrivals(connection, again.values(), cause="erased_again")
    rows = [
        {"storage_key": key, "model": model, "uid": uid}
        for _, uid, _, *keys in arrivals
        if uid in marked
        for key in keys
        if key is not None and key not in marked[uid]
    ]
    if rows:
        await connection.execute(insert(blob_reference).on_conflict_do_nothing(), rows)


async def _find_marked(
    connection: AsyncConnection, erasure: UUID, model: int, uids: Iterable[UUID]
) -> dict[UUID, Sequence[str | None]]:
    here = erasing.c
    keys = (here.data_storage_key, here.response_storage_key, here.metadata_storage_key)
    whole = and_(here.erasure == erasure, here.scope == "inference")
    query = select(here.uid, *keys).where(whole, among(erasing, model, list(uids)))
    return {uid: storage_keys for uid, *storage_keys in await connection.execute(query)}
