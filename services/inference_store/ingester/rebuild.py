"""Rebuilds the index from the bucket alone, one page of its listing at a time, with the reader and
writer of the pipeline.

Its position is written in the transaction of the rows: a crash repeats one uncommitted page, and
counts nothing twice. While a page is written the next one is read. Erased inferences stay erased,
and those that today's policies do not keep are queued for deletion, as with any late event.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from uuid import UUID

from sqlalchemy import bindparam
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inference_store.erasure.delete.rows import delete_inputs
from inference_store.index import parked
from inference_store.index.accounting import Outcome
from inference_store.index.dictionary import Dictionary
from inference_store.index.records import Rejection
from inference_store.index.sidecars import Sidecar
from inference_store.index.tables import inference
from inference_store.index.writing import Indexable
from inference_store.inference.events import StorageKey
from inference_store.inference.layout import EDITED
from inference_store.objects import Blobs
from inference_store.operations.reconcile import reconciliations
from inference_store.operations.reconcile.bucket_prefixes import BucketPrefix
from inference_store.operations.reconcile.reconciliations import Finding, Reconciliation
from inference_store.platform.failpoints import failpoint
from inference_store.platform.settings import IngesterSettings

from .arrivals import Arrivals
from .batch import MissingBlob, ReadRecord
from .bucket import Carried, Listing, iterate_blobs, list_events, uid_in
from .in_flight import BucketCopy
from .reader import Reader
from .write import RegistrationGone, Writer

OBJECTS = 3000
"""The most objects of a page."""


@dataclass(slots=True)
class Page:
    """A page of the listing, with its events as read."""

    listed: Listing
    carried: dict[int, Carried] = field(default_factory=dict)
    reads: list[ReadRecord] = field(default_factory=list)


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
        dictionary = Dictionary(
            engine, most_keys=settings.max_keys_per_model, most_labels=settings.max_labels_per_model
        )
        # nothing is parked: events that would wait are reported
        never = parked.Schedule(timedelta(), timedelta(), timedelta())
        target = settings.partition_inferences
        self._writer = Writer(engine, dictionary, never, blobs, partition_target=target)

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
                    after = page.listed.after
                    if after is not None:
                        ahead = asyncio.create_task(self._read(prefixes[number], after))
                    reconciliation = await self._write(reconciliation, page)
                    tell(reconciliation)
            finally:
                ahead.cancel()
                await asyncio.gather(ahead, return_exceptions=True)
        return reconciliation

    async def _read(self, prefix: BucketPrefix, after: str) -> Page:
        listing = await asyncio.to_thread(list_events, self._blobs, prefix, after, limit=self._page)
        page = Page(listing, {carried.record.offset: carried for carried in listing.carried})
        await self._index_of(page)
        return page

    async def _index_of(self, page: Page) -> None:
        """Read a page's events; called again if a registration changed meanwhile."""
        carried = list(page.carried.values())
        if not carried:
            return
        bucket_copy = BucketCopy(
            dict(iterate_blobs(carried)),
            await asyncio.to_thread(self._edited, carried),
            {event.record.offset: event.copy for event in carried if event.copy is not None},
        )
        reads = await self._reader.read([event.record for event in carried], bucket_copy)
        page.reads = [self._checked(read, page.carried[read.record.offset]) for read in reads]

    def _checked(self, read: ReadRecord, carried: Carried) -> ReadRecord:
        """Check that the event in an object is its own; reject it otherwise."""
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
        """Return the edited metadata blobs of inferences with sidecars, by uid."""
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
                ours = (
                    (uid_in(found_object.place.key), found_object.place) for found_object in page
                )
                edited |= {uid: key for uid, key in ours if uid is not None and uid in among}
                after = page[-1].place.key
                if len(page) < 1000 or after > f"{prefix}{max(uids_of_segment)}":
                    break
        return edited

    async def _write(self, reconciliation: Reconciliation, page: Page) -> Reconciliation:
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
        self, reconciliation: Reconciliation, page: Page, one_by_one: bool
    ) -> Reconciliation:
        async with self._engine.begin() as connection:
            counts, findings = Counter(reconciliation.counts), _unreadable(page)
            if page.reads:
                arrivals, stored = await self._writer.store(
                    connection, page.reads, one_by_one=one_by_one
                )
                await self._forget_inputs(connection, page, stored)
                counts.update(_counted(arrivals, stored))
                findings += [
                    _not_indexed(page, read, why) for read, why in _list_unindexed(arrivals)
                ]
            counts["unreadable"] += len(findings)
            await reconciliations.add_findings(connection, reconciliation.id, findings)
            after = page.listed.after
            how_far = (
                {"after": after} if after else {"place": reconciliation.place + 1, "after": ""}
            )
            written = await reconciliations.update_reconciliation(
                connection, reconciliation.id, state="repairing", counts=dict(counts), **how_far
            )
            failpoint("rebuild.commit.before")
        return written

    async def _forget_inputs(
        self, connection: AsyncConnection, page: Page, stored: Sequence[tuple[ReadRecord, Outcome]]
    ) -> None:
        """Delete the inputs of new inferences whose request was erased, and note it in the rows."""
        gone: dict[int, dict[UUID, datetime]] = {}
        for read, outcome in stored:
            at = page.carried[read.record.offset].input_deleted_at
            item = read.result
            if outcome is Outcome.STORED and at is not None and isinstance(item, Indexable):
                gone.setdefault(item.registration.model, {})[item.event.uid] = at
        for model, uids in sorted(gone.items()):
            await delete_inputs(connection, model, sorted(uids))
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


def _list_unindexed(arrivals: Arrivals) -> list[tuple[ReadRecord, str]]:
    """Return the events that were not indexed, with the reasons."""
    dead = [(read, rejection.detail) for read, rejection in arrivals.dead]
    waiting = [(read, missing.detail or "it waits") for read, missing in arrivals.missing]
    return dead + waiting


def _unreadable(page: Page) -> list[Finding]:
    return [
        Finding("unreadable", str(source), detail=why[:2000])
        for source, why in page.listed.unreadable
    ]


def _not_indexed(page: Page, read: ReadRecord, why: str) -> Finding:
    carried = page.carried[read.record.offset]
    model_id = None
    if isinstance(read.result, MissingBlob | Rejection):
        model_id = read.result.model_id
    return Finding("unreadable", str(carried.source), model_id, detail=why[:2000])
