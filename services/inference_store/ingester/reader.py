"""Converts records to inferences that can be indexed: decode, look the model up, fetch, parse.
Ground truth is written at once.

It yields to the event loop every 50 events, so that the batch before can be written meanwhile.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import islice
from typing import Any, TypeVar
from uuid import UUID

from opentelemetry.trace import SpanKind
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inference_store.index import accounting, registrations, sidecars, unsettled
from inference_store.index.accounting import Outcome, PartitionId
from inference_store.index.registrations import Registration
from inference_store.index.sidecars import Sidecar
from inference_store.index.unsettled import Record, Rejection, UnsettledEvent
from inference_store.index.writing import Indexable
from inference_store.inference.errors import BlobForbidden, BlobMissing, BlobTooLarge, InvalidEvent
from inference_store.inference.events import InferenceEvent, StorageKey, decode
from inference_store.inference.metadata import Metadata, MetadataCaps, read_metadata
from inference_store.inference.task_types import (
    PredictionCaps,
    Predictions,
    read_predictions,
    task_type_of,
)
from inference_store.ingester.batch import MissingBlob, ReadRecord
from inference_store.ingester.writer import RegistrationGone, Writer, keep
from inference_store.objects import OVER_BUDGET, Blobs, Fetched
from inference_store.platform import traces
from inference_store.platform.backoff import Backoff, Stopped, pause
from inference_store.platform.failpoints import failpoint
from inference_store.platform.metrics import PARKED_TRIES, STAGE_SECONDS
from inference_store.platform.settings import IngesterSettings
from inference_store.platform.traces import stage
from inference_store.truth.messages import Messages


@dataclass(frozen=True, slots=True)
class Places:
    """Where blobs of an event are, by their kinds, whatever it says itself; and extras that it does
    not have."""

    keys: Mapping[str, Any]
    extras: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BucketCopy:
    """The bucket's blobs of events that are read from it again.

    They replace the blobs inside the event, because edits are written to them. A response that no
    longer exists is unknown, and nothing waits for it.
    """

    # the blobs that were read already
    blobs: Mapping[StorageKey, bytes] = field(default_factory=dict)
    # the metadata blob that an edit made, by the inference's uid
    edited: Mapping[UUID, StorageKey] = field(default_factory=dict)
    # a sidecar's copy of a metadata blob that may no longer exist, by the record's offset
    copies: Mapping[int, bytes] = field(default_factory=dict)
    # by the record's offset, of what is in segments
    places: Mapping[int, Places] = field(default_factory=dict)


@dataclass(slots=True)
class InFlightEvent:
    """A decoded event with its record, and the two blobs that the index reads."""

    record: Record
    event: InferenceEvent
    registration: Registration | None = None
    metadata: Fetched = None
    response: Fetched = None
    bucket_copy: BucketCopy | None = None
    # a copy of the metadata blob, which may no longer exist
    copy: bytes | None = None

    def use(self, bucket_copy: BucketCopy) -> None:
        """Replace the metadata inside the event by the bucket's."""
        self.bucket_copy, event = bucket_copy, self.event
        if (places := bucket_copy.places.get(self.record.offset)) is not None:
            # not its uid, which is made of what it says
            extras = replace(event.extras, **places.extras)
            event = self.event = replace(event, **places.keys, extras=extras)
            if event.response is not None:
                self.response = bucket_copy.blobs.get(event.response)
        key = bucket_copy.edited.get(event.uid, event.metadata)
        if key is not None:
            self.copy = bucket_copy.copies.get(self.record.offset, event.inline_metadata)
            self.event = replace(event, metadata=key, inline_metadata=None)
            self.metadata = bucket_copy.blobs.get(key)


_T = TypeVar("_T")
_SLICE = 50
# a flag: the bucket no longer had the response when the index was rebuilt
_NO_RESPONSE = "response_missing"
_NO_METADATA = Metadata(entries=(), leaves=(), presences=(), flags=(), problem=None)
# Bytes of blobs in memory at once: blobs over the budget are fetched in the next round.
_FETCH_BUDGET = 64 * 1024 * 1024


class Reader:
    """Reads records; raises if a server is unavailable, so that the caller waits and retries."""

    def __init__(self, settings: IngesterSettings, engine: AsyncEngine, blobs: Blobs) -> None:
        self._settings = settings
        self._engine = engine
        self._blobs = blobs
        self._metadata_caps = MetadataCaps(
            keys=settings.max_keys_per_inference,
            blob_bytes=settings.max_metadata_bytes,
        )
        self._prediction_caps = PredictionCaps(predictions=settings.max_predictions)
        self._truth_topic = settings.kafka_truth_topic
        self._messages = Messages(
            engine,
            blobs,
            by=f"topic:{settings.kafka_truth_topic}",
            keep=timedelta(days=settings.ground_truth_wait_days),
        )

    async def read(
        self, records: Sequence[Record], bucket_copy: BucketCopy | None = None
    ) -> list[ReadRecord]:
        """Read the records, in order. Raises ObjectStoreUnavailable, and errors of Postgres.

        `bucket_copy`: the records come from the bucket, not from Kafka.
        """
        truths = [record for record in records if record.partition_id.topic == self._truth_topic]
        records = [record for record in records if record.partition_id.topic != self._truth_topic]
        reads = await self._take(truths) if truths else []
        with stage(STAGE_SECONDS, "decode"):
            rejected, events = await self._decode(records)
        if bucket_copy is not None:
            for item in events:
                item.use(bucket_copy)
        with stage(STAGE_SECONDS, "look_up"):
            await self._look_up(events)
        reads += rejected
        registered = [item for item in events if item.registration is not None]
        for item in events:
            if item.registration is None:
                event = item.event
                why = f"model {event.model_id!r} is not registered, and unknown models are refused"
                rejection = Rejection("unknown_model", why, event.model_id, event.inference_id)
                reads.append(ReadRecord(item.record, rejection))
        while registered:
            with stage(STAGE_SECONDS, "fetch"):
                fetched, registered = await self._fetch(registered)
            with stage(STAGE_SECONDS, "parse"):
                reads += await self._parse(fetched)
        return sorted(reads, key=lambda read: (read.record.partition_id, read.record.offset))

    async def _take(self, truths: Sequence[Record]) -> list[ReadRecord]:
        """Write ground truth, before its offsets are accounted for: it may be written twice."""
        with stage(STAGE_SECONDS, "truth"):
            results = await self._messages.take(truths)
        return [ReadRecord(record, of) for record, of in zip(truths, results, strict=True)]

    async def _decode(
        self, records: Sequence[Record]
    ) -> tuple[list[ReadRecord], list[InFlightEvent]]:
        rejected: list[ReadRecord] = []
        events: list[InFlightEvent] = []
        for some in _slices(records):
            for record in some:
                event: InferenceEvent | InvalidEvent
                try:
                    event = decode(
                        record.payload, record_time=record.time, buckets=self._blobs.buckets
                    )
                except InvalidEvent as wrong:
                    event = wrong
                if isinstance(event, InferenceEvent) and record.fault is None:
                    events.append(InFlightEvent(record, event))
                    continue
                fault = record.fault or event
                assert not isinstance(fault, InferenceEvent)
                ids = (event.model_id, event.inference_id)
                rejected.append(ReadRecord(record, Rejection(fault.reason, fault.detail, *ids)))
            await asyncio.sleep(0)
        return rejected, events

    async def _look_up(self, events: Sequence[InFlightEvent]) -> None:
        events_by_model = {item.event.model_id: item.event for item in events}
        if not events_by_model:
            return
        async with self._engine.connect() as connection:
            known_models = await registrations.find_by_ids(connection, events_by_model)
        missing = {
            model_id: e for model_id, e in events_by_model.items() if model_id not in known_models
        }
        if missing and self._settings.ingester_unknown_models == "register":
            async with self._engine.begin() as connection:
                known_models |= await registrations.register_missing(connection, missing)
        for item in events:
            item.registration = known_models.get(item.event.model_id)

    async def _fetch(
        self, events: list[InFlightEvent]
    ) -> tuple[list[InFlightEvent], list[InFlightEvent]]:
        keys: list[StorageKey | None] = []
        for item in events:
            event = item.event
            has_metadata = event.inline_metadata is not None or item.metadata is not None
            keys.append(None if has_metadata else event.metadata)
            has_response = event.inline_response is not None or item.response is not None
            keys.append(None if has_response else event.response)
        if not any(keys):
            return events, []
        failpoint("ingester.get.before")
        limit = max(self._settings.max_metadata_bytes, self._settings.max_response_bytes)
        blobs = await asyncio.to_thread(
            self._blobs.get_many, keys, limit=limit, budget=_FETCH_BUDGET
        )
        failpoint("ingester.get.after")
        here: list[InFlightEvent] = []
        later: list[InFlightEvent] = []
        for item, metadata, response in zip(events, blobs[::2], blobs[1::2], strict=True):
            if metadata is OVER_BUDGET or response is OVER_BUDGET:
                later.append(item)
                continue
            item.metadata = item.metadata if metadata is None else metadata
            item.response = item.response if response is None else response
            if item.bucket_copy is not None:
                # the copy, or nothing, in place of blobs that are missing: nothing waits for them
                item.metadata = item.copy if isinstance(metadata, BlobMissing) else item.metadata
                item.response = None if isinstance(response, BlobMissing) else item.response
            here.append(item)
        return here, later

    async def _parse(self, events: Sequence[InFlightEvent]) -> list[ReadRecord]:
        reads: list[ReadRecord] = []
        for some in _slices(events):
            reads += [ReadRecord(item.record, self._result(item)) for item in some]
            await asyncio.sleep(0)
        return reads

    def _result(self, item: InFlightEvent) -> Indexable | MissingBlob:
        event, registration = item.event, item.registration
        if registration is None:
            raise AssertionError("only events of known models are parsed")
        for blob, key in ((item.metadata, event.metadata), (item.response, event.response)):
            if isinstance(blob, BlobMissing | BlobForbidden):
                nothing = Predictions(items=None)
                bare = Indexable(
                    event, registration, _NO_METADATA, nothing, sidecar=self._sidecar(item)
                )
                waits = MissingBlob(str(key), event.model_id, event.inference_id, item=bare)
                if isinstance(blob, BlobForbidden):
                    return replace(waits, reason="blob_forbidden", detail=str(blob))
                return waits
        flags: list[str] = []
        inline, named = event.inline_response, event.response
        if item.bucket_copy and item.response is None and inline is None and named is not None:
            flags.append(_NO_RESPONSE)
        metadata = _choose_blob(event.inline_metadata, item.metadata, "metadata", flags)
        response = _choose_blob(inline, item.response, "response", flags)
        return Indexable(
            event=event,
            registration=registration,
            metadata=read_metadata(metadata, caps=self._metadata_caps, response=response),
            predictions=self._predictions(event, registration, response, flags),
            flags=tuple(flags),
            sidecar=self._sidecar(item),
        )

    def _sidecar(self, item: InFlightEvent) -> Sidecar | None:
        """Return the sidecar that stores the event in the bucket, if it is needed and its producer
        wrote none."""
        if self._settings.ingester_sidecars == "off" or not sidecars.is_wanted(item.event):
            return None
        metadata = item.metadata if isinstance(item.metadata, bytes) else None
        content = sidecars.encode(sidecars.contents_of(item.record, metadata))
        return Sidecar(sidecars.make_key(self._blobs.buckets.default, item.event), content)

    def _predictions(
        self,
        event: InferenceEvent,
        registration: Registration,
        response: bytes | None,
        flags: Sequence[str],
    ) -> Predictions:
        if "response_too_large" in flags or _NO_RESPONSE in flags:
            return Predictions(items=None)
        return read_predictions(
            response,
            task_type=task_type_of(event.extras.task_type or registration.task_type),
            class_labels=registration.class_labels,
            output_mapping=registration.output_mapping,
            width=event.extras.width,
            height=event.extras.height,
            ok=event.extras.ok,
            caps=self._prediction_caps,
        )


def _choose_blob(
    inline: bytes | None, fetched: Fetched, name: str, flags: list[str]
) -> bytes | None:
    """Return the blob inside the event, or else the fetched one."""
    blob = fetched if inline is None else inline
    if isinstance(blob, BlobTooLarge):
        flags.append(f"{name}_too_large")
    return blob if isinstance(blob, bytes) else None


def _slices(items: Sequence[_T]) -> Iterator[list[_T]]:
    remaining = iter(items)
    while some := list(islice(remaining, _SLICE)):
        yield some


# Retries parked events that are due, and dead letters that someone redrives.
#
# There is no new offset: the record is read from Postgres, and its state in the accounting changes.
# Fetching is done before the transactions. These are small, because they hold the fence and the
# accounting; each handles only events that are still as they were read, and not locked.

_EVERY_SECONDS = 1.0
# At once, before the next look.
_MOST_TRIED = 200
# In one transaction.
_MOST_EVENTS = 20


class Retries:
    """Tries parked and redriven events again, until stopped."""

    def __init__(
        self,
        settings: IngesterSettings,
        engine: AsyncEngine,
        reader: Reader,
        writer: Writer,
        *,
        backoff: Backoff,
        stop: asyncio.Event,
    ) -> None:
        self._engine = engine
        self._reader = reader
        self._writer = writer
        self._give_up_after = timedelta(seconds=settings.ingester_parked_give_up_seconds)
        self._backoff = backoff
        self._stop = stop

    async def run(self) -> None:
        """Look for due events every second, and at once again while there are more."""
        while not self._stop.is_set():
            try:
                if not await self._backoff.retry(self.once):
                    await pause(self._stop, _EVERY_SECONDS)
            except RegistrationGone:
                continue
            except Stopped:
                return

    async def once(self) -> int:
        """Try the events that are due, and return their number."""
        async with self._engine.connect() as connection:
            events = await unsettled.find_due(connection, limit=_MOST_TRIED)
        if not events:
            return 0
        attributes: traces.Attributes = {
            "messaging.system": "kafka",
            "messaging.operation.name": "retry",
            "messaging.batch.message_count": len(events),
        }
        with traces.ended(traces.begin("retry", SpanKind.CONSUMER, attributes)):
            await self._try(sorted(events, key=lambda event: event.record.partition_id))
        return len(events)

    async def _try(self, events: Sequence[UnsettledEvent]) -> None:
        reads = await self._reader.read([event.record for event in events])
        by_place = {(read.record.partition_id, read.record.offset): read for read in reads}
        results = {e.id: by_place[e.record.partition_id, e.record.offset] for e in events}
        await self._writer.prepare(reads)
        failpoint("ingester.retry.before")
        for start in range(0, len(events), _MOST_EVENTS):
            some = events[start : start + _MOST_EVENTS]
            await self._writer.attempt(partial(self._settle_all, some, results))
            failpoint("ingester.retry.commit.after")

    async def _settle_all(
        self,
        events: Sequence[UnsettledEvent],
        results: Mapping[int, ReadRecord],
        one_by_one: bool,
    ) -> None:
        changes: dict[PartitionId, Counter[Outcome]] = {}
        async with self._engine.begin() as connection:
            # The accounting first, in the pipeline's order, so that the two cannot deadlock.
            await accounting.lock_partitions(
                connection, {event.record.partition_id for event in events}
            )
            # and what all of them need, before the first is written
            await keep(connection, [results[event.id] for event in events])
            for event in await unsettled.lock(connection, events):
                was = Outcome.PARKED if event.state == "parked" else Outcome.DEAD
                outcome = await self._settle(connection, event, results[event.id], one_by_one)
                counts = changes.setdefault(event.record.partition_id, Counter())
                counts.update({outcome: 1})
                counts.subtract({was: 1})
            await accounting.change_outcomes(connection, changes)
            failpoint("ingester.retry.commit.before")

    async def _settle(
        self, connection: AsyncConnection, event: UnsettledEvent, read: ReadRecord, one_by_one: bool
    ) -> Outcome:
        """Try an event; the writer parks it, or makes it an open dead letter, in its row."""
        outcome = await self._index(connection, read, one_by_one)
        if outcome is Outcome.PARKED and event.state == "parked":
            if datetime.now(UTC) - event.created_at < self._give_up_after:
                await unsettled.postpone(connection, event)
                return outcome
            gave_up = ReadRecord(read.record, _give_up(read.result, event))
            outcome = await self._index(connection, gave_up, one_by_one)
        if outcome not in (Outcome.PARKED, Outcome.DEAD):
            await unsettled.settle(connection, event.id, outcome.value)
        return outcome

    async def _index(
        self, connection: AsyncConnection, read: ReadRecord, one_by_one: bool
    ) -> Outcome:
        sidecars: list[Sidecar] = []
        [(_, outcome)] = await self._writer.index(
            connection, [read], sidecars=sidecars, one_by_one=one_by_one
        )
        await self._writer.put(connection, sidecars)
        PARKED_TRIES.labels(outcome.value).inc()
        return outcome


def _give_up(result: object, event: UnsettledEvent) -> Rejection:
    tries = f"within {event.attempts + 1} tries"
    reason = "blob_missing"
    if isinstance(result, MissingBlob):
        reason = result.reason
        detail = f"{result.storage_key} did not come {tries}"
        if result.detail:
            detail += f": {result.detail}"
    else:
        detail = f"what it needs was being deleted, and did not come free {tries}"
    return Rejection(reason, detail, event.rejection.model_id, event.rejection.inference_id)
