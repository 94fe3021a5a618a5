"""Rebuilds the index from the bucket alone, one page of its listing at a time, with the reader and
writer of the pipeline.

Its position is written in the transaction of the rows: a crash repeats one uncommitted page, and
counts nothing twice. While a page is written the next one is read. Erased inferences stay erased,
and those that today's policies do not keep are queued for deletion, as with any late event.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import Any
from uuid import UUID

import orjson
from sqlalchemy import bindparam
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inference_store.erasure.rows import delete_part
from inference_store.index import sidecars
from inference_store.index.accounting import Outcome, PartitionId
from inference_store.index.dictionary import Dictionary
from inference_store.index.sidecars import REQUEST, Sidecar
from inference_store.index.tables import inference
from inference_store.index.unsettled import Record, Rejection
from inference_store.index.writing import Indexable
from inference_store.inference.events import StorageKey
from inference_store.inference.json_text import UnreadableJson, read_exactly, write_json
from inference_store.inference.layout import EDITED, SIDECARS, capture_of
from inference_store.ingester.batch import ReadRecord
from inference_store.ingester.reader import BucketCopy, Reader
from inference_store.ingester.writer import RegistrationGone, Writer
from inference_store.objects import OVER_BUDGET, Blobs, Fetched, Found
from inference_store.operations.reconcile import stored_reports
from inference_store.operations.reconcile.stored_reports import (
    BucketPrefix,
    Finding,
    Reconciliation,
)
from inference_store.platform.failpoints import failpoint
from inference_store.platform.settings import IngesterSettings

from .arrivals import Arrivals

# Reads events from the bucket: our own metadata blobs contain them, and sidecars those of other
# producers. Each page of a listing becomes records like those from Kafka.

# No partition of Kafka: such records are never quarantined.
_NOWHERE = PartitionId("", "bucket", 0, 0)
_LIMIT_BYTES = 64 * 1024 * 1024
_BUDGET_BYTES = 128 * 1024 * 1024
_LARGE_BYTES = 512 * 1024
_METADATA = ("standard_metadata", "extended_metadata", "metadata")


@dataclass(slots=True)
class Carried:
    """An event that an object contains."""

    source: StorageKey
    record: Record
    # the blob that the index reads, without the other data that our own producers keep in it
    metadata: bytes | None = None
    # the sidecar's copy of a metadata blob
    copy: bytes | None = None
    is_sidecar: bool = False
    # the request was erased: the input was deleted at this time at the latest
    input_deleted_at: datetime | None = None


@dataclass(slots=True)
class Listing:
    """A page of a prefix. `after`: the key before the next page; None: it is the last page."""

    after: str | None
    carried: list[Carried] = field(default_factory=list)
    """Each at the place that is the offset of its record."""
    unreadable: list[tuple[StorageKey, str]] = field(default_factory=list)
    reads: list[ReadRecord] = field(default_factory=list)
    """The events as read."""


def list_events(blobs: Blobs, bucket_prefix: BucketPrefix, after: str, *, limit: int) -> Listing:
    """Return the events of the next objects after a key. Blocks. Raises ObjectStoreUnavailable."""
    start = after.removeprefix(f"s3://{bucket_prefix.bucket}/") if after else ""
    whole = blobs.page(bucket_prefix.bucket, bucket_prefix.listed, after=start, limit=limit)
    listing = Listing(None)
    if len(whole) == limit:
        # without the last capture, which may continue on the next page
        last = _together(whole[-1].place.key)
        whole = [each for each in whole if _together(each.place.key) != last] or whole
        listing.after = str(whole[-1].place)
    there = {each.place.key for each in whole}
    sources = [each for each in whole if _carries(each.place.key, bucket_prefix)]
    blobs_of = blobs.get_many(
        [source.place for source in sources], limit=_LIMIT_BYTES, budget=_BUDGET_BYTES
    )
    for source, blob in zip(sources, blobs_of, strict=True):
        if blob is OVER_BUDGET:
            # The next page begins with it: memory is bounded.
            first = _together(source.place.key)
            listing.after = str([each.place for each in whole if each.place.key < first][-1])
            break
        _add(listing, source, blob, there)
    return listing


def _together(key: str) -> str:
    """Return the prefix that the keys of one capture share; any other key is alone."""
    return key if capture_of(key) is None else f"{key.rpartition('/')[0]}/"


def _carries(key: str, bucket_prefix: BucketPrefix) -> bool:
    is_of_capture = key.endswith("/metadata") and capture_of(key) is not None
    return bucket_prefix.prefix != EDITED and (key.startswith(f"{SIDECARS}/") or is_of_capture)


def _add(listing: Listing, source: Found, blob: Fetched, there: set[str]) -> None:
    if not isinstance(blob, bytes):
        listing.unreadable.append((source.place, f"it cannot be read: {blob}"))
        return
    number = len(listing.carried)
    try:
        if source.place.key.startswith(f"{SIDECARS}/"):
            listing.carried.append(_of_sidecar(number, source, blob))
        else:
            listing.carried.append(_of_metadata(number, source, blob, there))
    except (ValueError, UnreadableJson) as wrong:
        listing.unreadable.append((source.place, str(wrong)))


def _of_sidecar(number: int, source: Found, blob: bytes) -> Carried:
    contents = sidecars.decode(blob)
    if uid_in(source.place.key) is None:
        raise ValueError("its key names no inference")
    try:
        at = datetime.fromisoformat(str(contents.record.get("time")))
    except ValueError:
        at = source.modified_at
    return Carried(
        source.place,
        Record(_NOWHERE, number, at, None, contents.event),
        copy=contents.metadata,
        is_sidecar=True,
        input_deleted_at=source.modified_at if contents.input_deleted else None,
    )


def _of_metadata(number: int, source: Found, blob: bytes, there: set[str]) -> Carried:
    event, document = _event_in(blob)
    folder = source.place.key.rpartition("/")[0]
    erased = REQUEST not in document and f"{folder}/data" not in there
    return Carried(
        source.place,
        Record(_NOWHERE, number, source.modified_at, None, event),
        metadata=_alone(blob),
        input_deleted_at=source.modified_at if erased else None,
    )


def _event_in(blob: bytes) -> tuple[bytes, Mapping[str, Any]]:
    try:
        document = orjson.loads(blob)
        event = document.get("event") if isinstance(document, dict) else None
        written = orjson.dumps(event)
    except (orjson.JSONDecodeError, TypeError):
        document = read_exactly(blob)
        event = document.get("event") if isinstance(document, dict) else None
        written = write_json(event).encode("utf-8", "backslashreplace")
    if not isinstance(event, dict):
        raise ValueError("the metadata blob carries no event")
    return written, document


def _alone(blob: bytes) -> bytes:
    """Return a large metadata blob without the rest of the request, which no index reads."""
    if len(blob) <= _LARGE_BYTES:
        return blob
    exact = read_exactly(blob)
    needed = {name: value for name, value in exact.items() if name in _METADATA}
    return write_json(needed).encode("utf-8", "surrogatepass")


def uid_in(key: str) -> UUID | None:
    """Return the uid in the last part of a key, as of sidecars and edited blobs, or None."""
    try:
        return UUID(key.rpartition("/")[2])
    except ValueError:
        return None


OBJECTS = 3000
"""The most objects of a page."""


class Rebuild:
    """Indexes the inferences in the bucket.

    Raises ObjectStoreUnavailable and errors of the database; it can then be continued later.
    """

    def __init__(
        self, settings: IngesterSettings, engine: AsyncEngine, blobs: Blobs, *, page: int = OBJECTS
    ) -> None:
        self._engine = engine
        self._blobs = blobs
        self._page = page
        # It treats unknown models as the ingester's settings say, and writes no sidecars.
        settings = settings.model_copy(update={"ingester_sidecars": "off"})
        self._reader = Reader(settings, engine, blobs)
        dictionary = Dictionary(engine, most_keys=settings.max_keys_per_model)
        self._writer = Writer(engine, dictionary, blobs)

    async def run(
        self,
        reconciliation: Reconciliation,
        prefixes: Sequence[BucketPrefix],
        tell: Callable[[Reconciliation], None] = lambda _: None,
    ) -> Reconciliation:
        """Index prefix after prefix, from the current position."""
        while reconciliation.place < len(prefixes):
            ahead = asyncio.create_task(
                self._read(prefixes[reconciliation.place], reconciliation.after)
            )
            try:
                number = reconciliation.place
                while reconciliation.place == number:
                    page = await ahead
                    if (after := page.after) is not None:
                        ahead = asyncio.create_task(self._read(prefixes[number], after))
                    reconciliation = await self._write(reconciliation, page)
                    tell(reconciliation)
            finally:
                ahead.cancel()
                await asyncio.gather(ahead, return_exceptions=True)
        return reconciliation

    async def _read(self, prefix: BucketPrefix, after: str) -> Listing:
        page = await asyncio.to_thread(list_events, self._blobs, prefix, after, limit=self._page)
        await self._index_of(page)
        return page

    async def _index_of(self, page: Listing) -> None:
        """Read a page's events; called again if a registration changed meanwhile."""
        carried = page.carried
        if not carried:
            return
        bucket_copy = BucketCopy(
            {event.source: event.metadata for event in carried if event.metadata is not None},
            await asyncio.to_thread(self._edited, carried),
            {event.record.offset: event.copy for event in carried if event.copy is not None},
        )
        reads = await self._reader.read([event.record for event in carried], bucket_copy)
        page.reads = [self._checked(read, page.carried[read.record.offset]) for read in reads]

    def _checked(self, read: ReadRecord, carried: Carried) -> ReadRecord:
        item = read.result
        if not isinstance(item, Indexable):
            return read
        if carried.is_sidecar and item.event.uid == uid_in(carried.source.key):
            return replace(read, result=replace(item, sidecar=Sidecar(carried.source)))
        if not carried.is_sidecar and item.event.metadata == carried.source:
            return read
        detail = f"its event is that of another object: {item.event.uid}, {item.event.metadata}"
        ids = item.event.model_id, item.event.inference_id
        return replace(read, result=Rejection("invalid_storage_key", detail, *ids))

    def _edited(self, carried: Sequence[Carried]) -> dict[UUID, StorageKey]:
        edited: dict[UUID, StorageKey] = {}
        uids: dict[str, list[UUID]] = {}
        for event in carried:
            if event.is_sidecar:
                segment, uid = event.source.key.split("/")[1], uid_in(event.source.key)
                uids.setdefault(segment, []).extend([] if uid is None else [uid])
        bucket = self._blobs.buckets.default
        for segment, uids_of_segment in uids.items():
            prefix, among = f"{EDITED}/{segment}/", set(uids_of_segment)
            # uids and sidecars sort by time: the edited blobs are between the first and last uid
            after = f"{prefix}{min(uids_of_segment)}"[:-1]
            while page := self._blobs.page(bucket, prefix, after=after, limit=1000):
                ours = ((uid_in(each.place.key), each.place) for each in page)
                edited |= {uid: key for uid, key in ours if uid is not None and uid in among}
                after = page[-1].place.key
                if len(page) < 1000 or after > f"{prefix}{max(uids_of_segment)}":
                    break
        return edited

    async def _write(self, reconciliation: Reconciliation, page: Listing) -> Reconciliation:
        while True:
            try:
                await self._writer.prepare(page.reads)
                written = await self._writer.attempt(partial(self._commit, reconciliation, page))
            except RegistrationGone:
                await self._index_of(page)
                continue
            failpoint("rebuild.commit.after")
            return written

    async def _commit(
        self, reconciliation: Reconciliation, page: Listing, one_by_one: bool
    ) -> Reconciliation:
        async with self._engine.begin() as connection:
            counts = Counter(reconciliation.counts)
            findings = [
                Finding("unreadable", str(source), detail=why[:2000])
                for source, why in page.unreadable
            ]
            if page.reads:
                arrivals, stored = await self._writer.store(
                    connection, page.reads, one_by_one=one_by_one
                )
                await self._forget_inputs(connection, page, stored)
                counts.update(_counted(arrivals, stored))
                left = [(read, rejection.detail) for read, rejection in arrivals.dead]
                left += [(read, missing.detail or "it waits") for read, missing in arrivals.missing]
                for read, why in left:
                    source = page.carried[read.record.offset].source
                    result = read.result
                    model_id = None if isinstance(result, Indexable) else result.model_id
                    findings.append(Finding("unreadable", str(source), model_id, detail=why[:2000]))
            counts["unreadable"] += len(findings)
            await stored_reports.add_findings(connection, reconciliation.id, findings)
            how_far: dict[str, Any] = {"after": page.after}
            if page.after is None:
                how_far = {"place": reconciliation.place + 1, "after": ""}
            written = await stored_reports.update_reconciliation(
                connection, reconciliation.id, state="repairing", counts=dict(counts), **how_far
            )
            failpoint("rebuild.commit.before")
        return written

    async def _forget_inputs(
        self,
        connection: AsyncConnection,
        page: Listing,
        stored: Sequence[tuple[ReadRecord, Outcome]],
    ) -> None:
        gone: dict[int, dict[UUID, datetime]] = {}
        for read, outcome in stored:
            at = page.carried[read.record.offset].input_deleted_at
            item = read.result
            if outcome is Outcome.STORED and at is not None and isinstance(item, Indexable):
                gone.setdefault(item.registration.model, {})[item.event.uid] = at
        for model, uids in sorted(gone.items()):
            await delete_part(connection, model, sorted(uids), "input")
            here = inference.c
            at_their_time = (
                inference.update()
                .where(here.model == model, here.uid == bindparam("of"))
                .values(data_deleted_at=bindparam("at"))
            )
            rows = [{"of": uid, "at": at} for uid, at in uids.items()]
            await connection.execute(at_their_time, rows)


def _counted(arrivals: Arrivals, stored: Sequence[tuple[ReadRecord, Outcome]]) -> Counter[str]:
    names = {Outcome.STORED: "rebuilt", Outcome.DUPLICATE: "present"}
    outcomes = (outcome for _, outcome in (*stored, *arrivals.settled))
    return Counter(names.get(outcome, outcome.value) for outcome in outcomes)
