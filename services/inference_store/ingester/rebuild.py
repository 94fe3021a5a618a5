"""Rebuilds the index from the bucket alone, one page of its listing at a time, with the reader and
writer of the pipeline.

Its position is written in the transaction of the rows: a crash repeats one uncommitted page, and
counts nothing twice. While a page is written the next one is read. Erased inferences stay erased,
and those that today's policies do not keep are queued for deletion, as with any late event.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any
from uuid import UUID

from sqlalchemy import bindparam
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inference_store.erasure.rows import delete_part
from inference_store.index.accounting import Outcome
from inference_store.index.dictionary import Dictionary
from inference_store.index.sidecars import Sidecar
from inference_store.index.tables import blob_reference, inference
from inference_store.index.unsettled import Rejection
from inference_store.index.writing import Indexable
from inference_store.inference.events import StorageKey
from inference_store.inference.layout import EDITED
from inference_store.ingester.batch import ReadRecord
from inference_store.ingester.reader import BucketCopy, Reader
from inference_store.ingester.writer import RegistrationGone, Writer
from inference_store.objects import Blobs
from inference_store.operations.reconcile import stored_reports
from inference_store.operations.reconcile.stored_reports import (
    BucketPrefix,
    Finding,
    Reconciliation,
)
from inference_store.platform.failpoints import failpoint
from inference_store.platform.settings import IngesterSettings
from inference_store.truth.restoring import Restoring, read_documents, restore
from inference_store.truth.sets import TruthWriter

from .arrivals import Arrivals
from .bucket_events import Carried, Listed, Listing, list_events, uid_in

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
        self._response_bytes = settings.max_response_bytes
        # It treats unknown models as the ingester's settings say, and writes no sidecars.
        settings = settings.model_copy(update={"ingester_sidecars": "off"})
        self._reader = Reader(settings, engine, blobs)
        dictionary = Dictionary(engine, most_keys=settings.max_keys_per_model)
        self._writer = Writer(engine, dictionary, blobs)
        self._truth = TruthWriter(engine, blobs)

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
                        reading = self._read(prefixes[number], after, page.ahead)
                        ahead = asyncio.create_task(reading)
                    reconciliation = await self._write(reconciliation, page)
                    tell(reconciliation)
            finally:
                ahead.cancel()
                await asyncio.gather(ahead, return_exceptions=True)
        return reconciliation

    async def _read(self, prefix: BucketPrefix, after: str, ahead: Listed | None = None) -> Listing:
        page = await asyncio.to_thread(
            list_events,
            *(self._blobs, prefix, after),
            limit=self._page,
            response_bytes=self._response_bytes,
            ahead=ahead,
        )
        await self._index_of(page)
        return page

    async def _index_of(self, page: Listing) -> None:
        """Read a page's events; called again if a registration changed meanwhile."""
        carried = page.carried
        if not carried:
            return
        blobs = {event.source: event.metadata for event in carried if event.metadata is not None}
        for event in carried:
            place = None if event.places is None else event.places.keys.get("response")
            if place is not None and event.response is not None:
                blobs[place] = event.response
        bucket_copy = BucketCopy(
            blobs,
            await asyncio.to_thread(self._edited, carried),
            {event.record.offset: event.copy for event in carried if event.copy is not None},
            {event.record.offset: event.places for event in carried if event.places is not None},
        )
        reads = await self._reader.read([event.record for event in carried], bucket_copy)
        page.reads = [self._checked(read, page.carried[read.record.offset]) for read in reads]

    def _checked(self, read: ReadRecord, carried: Carried) -> ReadRecord:
        item = read.result
        if not isinstance(item, Indexable):
            return read
        if carried.is_sidecar and item.event.uid == uid_in(carried.source.key):
            return replace(read, result=replace(item, sidecar=Sidecar(carried.source)))
        if carried.places is not None and uid_in(carried.source.key) in {None, item.event.uid}:
            return read
        if not carried.is_sidecar and item.event.metadata == carried.source:
            return read
        detail = f"its event is that of another object: {item.event.uid}, {item.event.metadata}"
        ids = item.event.model_id, item.event.inference_id
        return replace(read, result=Rejection("invalid_storage_key", detail, *ids))

    def _edited(self, carried: Sequence[Carried]) -> dict[UUID, StorageKey]:
        edited: dict[UUID, StorageKey] = {}
        among: dict[str, list[UUID]] = {}
        for event in carried:
            if event.edited_among is not None:
                segment, first, last = event.edited_among
                among.setdefault(segment, []).extend([first, last])
        bucket = self._blobs.buckets.default
        for segment, uids in among.items():
            prefix = f"{EDITED}/{segment}/"
            # uids and sidecars sort by time: the edited blobs are between the first and last uid
            after = f"{prefix}{min(uids)}"[:-1]
            while page := self._blobs.page(bucket, prefix, after=after, limit=1000):
                ours = ((uid_in(each.place.key), each.place) for each in page)
                edited |= {uid: key for uid, key in ours if uid is not None and uid <= max(uids)}
                after = page[-1].place.key
                if len(page) < 1000 or after > f"{prefix}{max(uids)}":
                    break
        return edited

    async def _write(self, reconciliation: Reconciliation, page: Listing) -> Reconciliation:
        while True:
            try:
                await self._writer.prepare(page.reads)
                truth = await read_documents(self._truth, page.truths)
                commit = partial(self._commit, reconciliation, page, truth)
                written = await self._writer.attempt(commit)
            except RegistrationGone:
                await self._index_of(page)
                continue
            failpoint("rebuild.commit.after")
            return written

    async def _commit(
        self, reconciliation: Reconciliation, page: Listing, truth: Restoring, one_by_one: bool
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
                await _keep_edited(connection, page, stored)
                counts.update(_counted(arrivals, stored))
                left = [(read, rejection.detail) for read, rejection in arrivals.dead]
                left += [(read, missing.detail or "it waits") for read, missing in arrivals.missing]
                for read, why in left:
                    source = page.carried[read.record.offset].source
                    model_id = getattr(read.result, "model_id", None)
                    findings.append(Finding("unreadable", str(source), model_id, detail=why[:2000]))
            restored = await restore(connection, self._truth, truth)
            if restored is None:
                raise RegistrationGone
            counts += restored[0]
            findings += [Finding("unreadable", str(k), detail=why[:2000]) for k, why in restored[1]]
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


async def _keep_edited(
    connection: AsyncConnection, page: Listing, stored: Sequence[tuple[ReadRecord, Outcome]]
) -> None:
    """Refer to metadata in segments that an edit has replaced: they go with their inference."""
    rows = []
    for read, outcome in stored:
        places, item = page.carried[read.record.offset].places, read.result
        if outcome is Outcome.STORED and places is not None and isinstance(item, Indexable):
            old = places.keys["metadata"]
            if item.event.metadata != old:
                row = {"model": item.registration.model, "uid": item.event.uid}
                rows.append(row | {"storage_key": str(old)})
    if rows:
        await connection.execute(insert(blob_reference).on_conflict_do_nothing(), rows)


def _counted(arrivals: Arrivals, stored: Sequence[tuple[ReadRecord, Outcome]]) -> Counter[str]:
    names = {Outcome.STORED: "rebuilt", Outcome.DUPLICATE: "present"}
    outcomes = (outcome for _, outcome in (*stored, *arrivals.settled))
    return Counter(names.get(outcome, outcome.value) for outcome in outcomes)
