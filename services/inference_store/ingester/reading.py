"""From records to what can be indexed: decode, look the model up, fetch, parse.

The event loop is given back every 50 events, so that the batch before can be written meanwhile.
"""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import TypeVar

from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.index import registrations, sidecars
from inference_store.index.records import Record, Trouble
from inference_store.index.registrations import Registration
from inference_store.index.sidecars import Sidecar
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
from inference_store.objects import OVER_BUDGET, Blobs, Fetched
from inference_store.platform.failpoints import failpoint
from inference_store.platform.metrics import STAGE_SECONDS
from inference_store.platform.settings import IngesterSettings
from inference_store.platform.stages import stage

from .batch import MissingBlob, ReadRecord
from .in_flight import BucketCopy, InFlightEvent, drop_missing, has_no_response, use_bucket_copy

_T = TypeVar("_T")
_SLICE = 50
# a flag: the bucket had no response any more when the index was made anew
_NO_RESPONSE = "response_missing"
_NO_METADATA = Metadata(entries=(), leaves=(), presences=(), flags=(), problem=None)
# Bytes of blobs in memory at once: what is over is fetched in the next round.
_FETCH_BUDGET = 64 * 1024 * 1024


class Reader:
    """Reads records; raises when a server is away, so that the caller waits and asks again."""

    def __init__(self, settings: IngesterSettings, engine: AsyncEngine, blobs: Blobs) -> None:
        self._settings = settings
        self._engine = engine
        self._blobs = blobs
        self._metadata_caps = MetadataCaps(
            keys=settings.max_keys_per_inference,
            key_characters=settings.max_key_characters,
            levels=settings.max_json_depth,
            leaves=settings.max_json_leaves,
            blob_bytes=settings.max_metadata_bytes,
        )
        self._prediction_caps = PredictionCaps(predictions=settings.max_predictions)

    async def read(
        self, records: Sequence[Record], bucket_copy: BucketCopy | None = None
    ) -> list[ReadRecord]:
        """What each record is, in order. Raises BlobsAway, and errors of Postgres.

        `bucket_copy`: the records come from the bucket, not from Kafka.
        """
        with stage(STAGE_SECONDS, "decode"):
            troubles, events = await self._decode(records)
        for item in events if bucket_copy else ():
            use_bucket_copy(item, bucket_copy)
        with stage(STAGE_SECONDS, "look_up"):
            await self._look_up(events)
        known: list[InFlightEvent] = []
        for item in events:
            if item.registration is None:
                troubles.append(ReadRecord(item.record, _unknown(item.event)))
            else:
                known.append(item)
        reads = troubles
        while known:
            with stage(STAGE_SECONDS, "fetch"):
                fetched, known = await self._fetch(known)
            with stage(STAGE_SECONDS, "parse"):
                reads += await self._parse(fetched)
        return sorted(reads, key=lambda read: (read.record.partition_id, read.record.offset))

    async def _decode(
        self, records: Sequence[Record]
    ) -> tuple[list[ReadRecord], list[InFlightEvent]]:
        troubles: list[ReadRecord] = []
        events: list[InFlightEvent] = []
        for some in _slices(records):
            for record in some:
                if record.fault is not None:
                    troubles.append(ReadRecord(record, self._faulty(record, record.fault)))
                    continue
                try:
                    event = decode(
                        record.payload, record_time=record.time, buckets=self._blobs.buckets
                    )
                except InvalidEvent as wrong:
                    troubles.append(ReadRecord(record, _trouble(wrong)))
                else:
                    events.append(InFlightEvent(record, event))
            await asyncio.sleep(0)
        return troubles, events

    def _faulty(self, record: Record, fault: Trouble) -> Trouble:
        """What is wrong with a record, and of which inference it tells."""
        found: InferenceEvent | InvalidEvent
        try:
            found = decode(record.payload, record_time=record.time, buckets=self._blobs.buckets)
        except InvalidEvent as wrong:
            found = wrong
        return replace(fault, model_id=found.model_id, inference_id=found.inference_id)

    async def _look_up(self, events: Sequence[InFlightEvent]) -> None:
        """Each event's registration; an unknown model is registered, if it may be."""
        wanted = {item.event.model_id: item.event for item in events}
        if not wanted:
            return
        async with self._engine.connect() as connection:
            found = await registrations.known(connection, wanted)
        missing = {model_id: e for model_id, e in wanted.items() if model_id not in found}
        if missing and self._settings.ingester_unknown_models == "register":
            async with self._engine.begin() as connection:
                found |= await registrations.register_missing(connection, missing)
        for item in events:
            item.registration = found.get(item.event.model_id)

    async def _fetch(
        self, events: list[InFlightEvent]
    ) -> tuple[list[InFlightEvent], list[InFlightEvent]]:
        """Those whose blobs are here now, and those that did not fit into memory with them."""
        wanted = [partition_id for item in events for partition_id in _wanted(item)]
        if not any(wanted):
            return events, []
        failpoint("ingester.get.before")
        limit = max(self._settings.max_metadata_bytes, self._settings.max_response_bytes)
        got = await asyncio.to_thread(
            self._blobs.get_many, wanted, limit=limit, budget=_FETCH_BUDGET
        )
        failpoint("ingester.get.after")
        here: list[InFlightEvent] = []
        later: list[InFlightEvent] = []
        for item, metadata, response in zip(events, got[::2], got[1::2], strict=True):
            if metadata is OVER_BUDGET or response is OVER_BUDGET:
                later.append(item)
                continue
            item.metadata = item.metadata if metadata is None else metadata
            item.response = response
            if item.bucket_copy is not None:
                drop_missing(item)
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
        for blob, partition_id in (
            (item.metadata, event.metadata),
            (item.response, event.response),
        ):
            if isinstance(blob, BlobMissing | BlobForbidden):
                nothing = Predictions(items=None)
                bare = Indexable(
                    event, registration, _NO_METADATA, nothing, sidecar=self._sidecar(item)
                )
                waits = MissingBlob(
                    str(partition_id), event.model_id, event.inference_id, item=bare
                )
                if isinstance(blob, BlobForbidden):
                    return replace(waits, reason="blob_forbidden", detail=str(blob))
                return waits
        return self._indexable(item, registration)

    def _indexable(self, item: InFlightEvent, registration: Registration) -> Indexable:
        flags = [_NO_RESPONSE] if item.bucket_copy and has_no_response(item) else []
        metadata = _bytes(event_blob(item.event.inline_metadata, item.metadata), "metadata", flags)
        response = _bytes(event_blob(item.event.inline_response, item.response), "response", flags)
        return Indexable(
            event=item.event,
            registration=registration,
            metadata=read_metadata(metadata, caps=self._metadata_caps, response=response),
            predictions=self._predictions(item.event, registration, response, flags),
            flags=tuple(flags),
            sidecar=self._sidecar(item),
        )

    def _sidecar(self, item: InFlightEvent) -> Sidecar | None:
        """What keeps the event in the bucket, where that is asked for and its producer does not."""
        if self._settings.ingester_sidecars == "off" or not sidecars.is_wanted(item.event):
            return None
        found = item.metadata if isinstance(item.metadata, bytes) else None
        content = sidecars.encode(sidecars.contents_of(item.record, found))
        return Sidecar(sidecars.place_of(self._blobs.buckets.default, item.event), content)

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


def event_blob(inline: bytes | None, fetched: Fetched) -> Fetched:
    """A blob that came inside the event, or else the object."""
    return fetched if inline is None else inline


def _bytes(blob: Fetched, name: str, flags: list[str]) -> bytes | None:
    if isinstance(blob, BlobTooLarge):
        flags.append(f"{name}_too_large")
    return blob if isinstance(blob, bytes) else None


def _wanted(item: InFlightEvent) -> tuple[StorageKey | None, StorageKey | None]:
    """The objects that the index needs: never the datum, and nothing that is here already."""
    event = item.event
    return (
        event.metadata if event.inline_metadata is None and item.metadata is None else None,
        event.response if event.inline_response is None else None,
    )


def _trouble(wrong: InvalidEvent) -> Trouble:
    return Trouble(wrong.reason, wrong.detail, wrong.model_id, wrong.inference_id)


def _unknown(event: InferenceEvent) -> Trouble:
    detail = f"model {event.model_id!r} is not registered, and unknown models are refused"
    return Trouble("unknown_model", detail, event.model_id, event.inference_id)


def _slices(items: Sequence[_T]) -> Iterator[list[_T]]:
    remaining = iter(items)
    while some := list(islice(remaining, _SLICE)):
        yield some
