"""The index made anew from the bucket alone: a page of its listing at a time, by the pipeline's own
reading and writing.

How far it is, is written in the transaction of the rows: a crash repeats one page, which is not
committed, and counts nothing twice. While a page is written the next one is read. What was erased
stays erased, and what today's policies do not keep is queued for deletion, as with any event that
comes late.
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

from inference_store.erasure.delete.rows import forget_inputs
from inference_store.index import parked
from inference_store.index.accounting import Outcome
from inference_store.index.dictionary import Dictionary
from inference_store.index.records import Trouble
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
from .bucket import Carried, Listed, known_of, listed, uid_in
from .in_flight import BucketCopy
from .reading import Reader
from .write import RegistrationGone, Writer

OBJECTS = 3000
"""Most objects of a page."""


@dataclass(slots=True)
class Page:
    """A page of the listing, read."""

    listed: Listed
    carried: dict[int, Carried] = field(default_factory=dict)
    reads: list[ReadRecord] = field(default_factory=list)


class Rebuild:
    """Indexes what the bucket has. Raises BlobsAway and the database's trouble: go on later."""

    def __init__(
        self, settings: IngesterSettings, engine: AsyncEngine, blobs: Blobs, *, page: int = OBJECTS
    ) -> None:
        self._engine = engine
        self._blobs = blobs
        self._page = page
        # It asks for what the ingester's settings say of unknown models, and writes no sidecars.
        settings = settings.model_copy(update={"ingester_sidecars": "off"})
        self._reader = Reader(settings, engine, blobs)
        dictionary = Dictionary(
            engine, most_keys=settings.max_keys_per_model, most_labels=settings.max_labels_per_model
        )
        # nothing is parked: what waits is told
        never = parked.Schedule(timedelta(), timedelta(), timedelta())
        target = settings.partition_inferences
        self._writer = Writer(engine, dictionary, never, blobs, partition_target=target)

    async def run(
        self,
        one: Reconciliation,
        places: Sequence[BucketPrefix],
        tell: Callable[[Reconciliation], None] = lambda _: None,
    ) -> Reconciliation:
        """Index place after place, from where it is."""
        while one.place < len(places):
            ahead = asyncio.create_task(self._read(places[one.place], one.after))
            try:
                number = one.place
                while one.place == number:
                    page = await ahead
                    after = page.listed.after
                    if after is not None:
                        ahead = asyncio.create_task(self._read(places[number], after))
                    one = await self._write(one, page)
                    tell(one)
            finally:
                ahead.cancel()
                await asyncio.gather(ahead, return_exceptions=True)
        return one

    async def _read(self, place: BucketPrefix, after: str) -> Page:
        found = await asyncio.to_thread(listed, self._blobs, place, after, limit=self._page)
        page = Page(found, {each.record.offset: each for each in found.carried})
        await self._index_of(page)
        return page

    async def _index_of(self, page: Page) -> None:
        """Read a page's events; again where a registration changed meanwhile."""
        carried = list(page.carried.values())
        if not carried:
            return
        bucket_copy = BucketCopy(
            dict(known_of(carried)),
            await asyncio.to_thread(self._edited, carried),
            {each.record.offset: each.copy for each in carried if each.copy is not None},
        )
        reads = await self._reader.read([each.record for each in carried], bucket_copy)
        page.reads = [self._checked(read, page.carried[read.record.offset]) for read in reads]

    def _checked(self, read: ReadRecord, carried: Carried) -> ReadRecord:
        """The event that an object carries is its own, or it lies where it does not belong."""
        item = read.result
        if not isinstance(item, Indexable):
            return read
        if carried.is_sidecar and item.event.uid == uid_in(carried.source.key):
            return replace(read, result=replace(item, sidecar=Sidecar(carried.source)))
        if not carried.is_sidecar and item.event.metadata == carried.source:
            return read
        detail = f"its event is that of another object: {item.event.uid}, {item.event.metadata}"
        ids = item.event.model_id, item.event.inference_id
        return replace(read, result=Trouble("invalid_storage_key", detail, *ids))

    def _edited(self, carried: Sequence[Carried]) -> dict[UUID, StorageKey]:
        """The metadata blobs that edits made for what sidecars tell of."""
        found: dict[UUID, StorageKey] = {}
        uids: dict[str, list[UUID]] = {}
        for each in carried:
            if each.is_sidecar:
                segment, uid = each.source.key.split("/")[1], uid_in(each.source.key)
                uids.setdefault(segment, []).extend([] if uid is None else [uid])
        bucket = self._blobs.buckets.default
        for segment, wanted in uids.items():
            prefix, among = f"{EDITED}/{segment}/", set(wanted)
            # uids sort by time, and so do sidecars: what edits made lies between two of them
            after = f"{prefix}{min(wanted)}"[:-1]
            while page := self._blobs.page(bucket, prefix, after=after, limit=1000):
                ours = ((uid_in(one.place.key), one.place) for one in page)
                found |= {uid: place for uid, place in ours if uid is not None and uid in among}
                after = page[-1].place.key
                if len(page) < 1000 or after > f"{prefix}{max(wanted)}":
                    break
        return found

    async def _write(self, one: Reconciliation, page: Page) -> Reconciliation:
        while True:
            try:
                await self._writer.prepare(page.reads)
                written = await self._writer.attempt(partial(self._commit, one, page))
            except RegistrationGone:
                await self._index_of(page)
                continue
            failpoint("rebuild.commit.after")
            return written

    async def _commit(self, one: Reconciliation, page: Page, one_by_one: bool) -> Reconciliation:
        async with self._engine.begin() as connection:
            counts, findings = Counter(one.counts), _unreadable(page)
            if page.reads:
                arrivals, stored = await self._writer.store(
                    connection, page.reads, one_by_one=one_by_one
                )
                await self._forget_inputs(connection, page, stored)
                counts.update(_counted(arrivals, stored))
                findings += [_not_indexed(page, read, why) for read, why in _left(arrivals)]
            counts["unreadable"] += len(findings)
            await reconciliations.add_findings(connection, one.id, findings)
            after = page.listed.after
            how_far = {"after": after} if after else {"place": one.place + 1, "after": ""}
            written = await reconciliations.update(
                connection, one.id, state="repairing", counts=dict(counts), **how_far
            )
            failpoint("rebuild.commit.before")
        return written

    async def _forget_inputs(
        self, connection: AsyncConnection, page: Page, stored: Sequence[tuple[ReadRecord, Outcome]]
    ) -> None:
        """Of what is new and whose input was erased the row says so, and has no prompt."""
        gone: dict[int, dict[UUID, datetime]] = {}
        for read, outcome in stored:
            at = page.carried[read.record.offset].input_deleted_at
            item = read.result
            if outcome is Outcome.STORED and at is not None and isinstance(item, Indexable):
                gone.setdefault(item.registration.model, {})[item.event.uid] = at
        for model, uids in sorted(gone.items()):
            await forget_inputs(connection, model, sorted(uids))
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
    found = (outcome for _, outcome in (*stored, *arrivals.settled))
    return Counter(names.get(outcome, outcome.value) for outcome in found)


def _left(arrivals: Arrivals) -> list[tuple[ReadRecord, str]]:
    """What was not indexed, with the reasons."""
    dead = [(read, trouble.detail) for read, trouble in arrivals.dead]
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
    if isinstance(read.result, MissingBlob | Trouble):
        model_id = read.result.model_id
    return Finding("unreadable", str(carried.source), model_id, detail=why[:2000])
