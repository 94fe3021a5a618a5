"""Writes a batch: rows, accounting, dead letters, parked events and references, all or nothing.

Order of the effects: names for new keys and labels, and missing spans, in transactions of their
own (a crash leaves a name or a span that nothing uses yet); then one transaction:
1. lock the partitions' rows in the accounting (ConsumerFenced, if another moved them);
2. keep the registrations and the names from being removed, and the partitions from being merged;
3. sort out events that may not be stored; write parents, children, references;
4. write dead letters and parked events;
5. move the accounting from lo to hi;
6. write the sidecars of new inferences, if the settings require them: in the transaction, because
   only there it is certain that they are new, and nobody else writes or erases them before it
   ends.
After the commit Kafka is told, for lag tools only. A crash before the commit repeats the batch;
one after it repeats nothing, because the accounting has moved. A sidecar that was written before
the crash is written again with the repeated batch, or deleted if the event may then not be
stored.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from operator import attrgetter
from typing import Any, Final, TypeVar

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inference_store.erasure import pending_deletions
from inference_store.erasure.pending_deletions import enqueue_arrivals
from inference_store.index import (
    accounting,
    partitions,
    registrations,
    segments,
    sidecars,
    unsettled,
)
from inference_store.index import writing as indexing
from inference_store.index.accounting import Outcome, PartitionId
from inference_store.index.database import REFUSALS, cause_of, is_partition_missing, is_rows_fault
from inference_store.index.dictionary import Dictionary
from inference_store.index.sidecars import CONTENT_TYPE, Identity, Part, Sidecar
from inference_store.index.unsettled import Rejection
from inference_store.index.writing import Indexable, Rows, rows_of
from inference_store.ingester.arrivals import Arrivals, sort_out
from inference_store.ingester.batch import Batch, MissingBlob, OffsetRange, ReadRecord
from inference_store.objects import Blobs
from inference_store.platform.failpoints import failpoint
from inference_store.platform.metrics import STAGE_SECONDS
from inference_store.platform.traces import stage

Settled = Sequence[tuple[ReadRecord, Outcome]]
"""The outcome of each event that was read."""
Check = Callable[[AsyncConnection, Settled], Awaitable[None]]
T = TypeVar("T")
_MOST_LOOKS = 5
# The number of objects written between two heartbeats.
_PUTS = 50


class Writer:
    """Writes batches of read records into Postgres."""

    def __init__(
        self,
        engine: AsyncEngine,
        dictionary: Dictionary,
        blobs: Blobs,
        *,
        beat: Callable[[], None] = lambda: None,
    ) -> None:
        """`beat` is called between the PUTs of a long transaction: it is slow, not stuck."""
        self._engine = engine
        self._dictionary = dictionary
        self._blobs = blobs
        self._beat = beat
        self._spans = partitions.TimePartitions()
        self._registered: dict[int, datetime] = {}

    async def prepare(self, reads: Sequence[ReadRecord]) -> None:
        """Create every name and span that the rows need."""
        items = [read.result for read in reads if isinstance(read.result, Indexable)]
        for item in items:
            model = item.registration.model
            registered = item.registration.registered_at
            if self._registered.setdefault(model, registered) != registered:
                # Removed and registered again, with the same integer: its names went with it.
                self._dictionary.forget(model)
                self._registered[model] = registered
        several = {name for item in items for name in item.metadata.several}
        await self._dictionary.resolve(*collect_names(items), several)
        instants = [item.event.received_at for item in items]
        missing = self._spans.missing(instants)
        if missing:
            self._spans = await partitions.make_missing(
                self._engine, missing, target=partitions.TARGET
            )

    async def write(self, batch: Batch, within_limit: Check) -> Settled:
        """Write a batch. Raises ConsumerFenced, RegistrationGone, ObjectStoreUnavailable, errors of
        Postgres.

        `within_limit` gets the outcomes before the commit; an error that it raises rolls back.
        """
        with stage(STAGE_SECONDS, "prepare"):
            await self.prepare(batch.reads)
        failpoint("ingester.write.before")
        with stage(STAGE_SECONDS, "transaction"):
            settled = await self.attempt(partial(self._commit, batch, within_limit))
        failpoint("ingester.commit.after")
        return settled

    async def attempt(self, work: Callable[[bool], Awaitable[T]]) -> T:
        """Run a transaction; if Postgres refuses a value, run it again event by event."""
        one_by_one = False
        for _ in range(_MOST_LOOKS):
            try:
                return await work(one_by_one)
            except ErasedMeanwhile:
                continue
            except REFUSALS as error:
                if is_partition_missing(error):
                    self._spans = partitions.TimePartitions()
                if one_by_one or not is_rows_fault(error):
                    raise
                one_by_one = True
        raise ErasedMeanwhile

    async def _commit(self, batch: Batch, within_limit: Check, one_by_one: bool) -> Settled:
        sidecars: list[Sidecar] = []
        ranges = sorted(batch.ranges, key=attrgetter("partition_id"))
        async with self._engine.begin() as connection:
            for offset_range in ranges:
                await accounting.lock_at(connection, offset_range.partition_id, offset_range.lo)
            settled = await self.index(
                connection, batch.reads, sidecars=sidecars, one_by_one=one_by_one
            )
            await within_limit(connection, settled)
            outcomes: defaultdict[PartitionId, Counter[Outcome]] = defaultdict(Counter)
            for read, outcome in settled:
                outcomes[read.record.partition_id][outcome] += 1
            with stage(STAGE_SECONDS, "books"):
                for offset_range in ranges:
                    await _move(connection, offset_range, outcomes[offset_range.partition_id])
            failpoint("ingester.write.books")
            await self.put(connection, sidecars)
            failpoint("ingester.commit.before")
        return settled

    async def put(self, connection: AsyncConnection, sidecars: Sequence[Sidecar]) -> None:
        """Write the sidecars of the inferences that the caller's transaction inserts.

        Raises ObjectStoreUnavailable.
        """
        if not sidecars:
            return
        failpoint("ingester.sidecar.before")
        objects = [(sidecar.place, sidecar.content) for sidecar in sidecars]
        for start in range(0, len(objects), _PUTS):
            self._beat()
            if start:  # Postgres ends a transaction that stands idle
                await connection.execute(select(1))
            some = objects[start : start + _PUTS]
            await asyncio.to_thread(self._blobs.put_many, some, content_type=CONTENT_TYPE)
        failpoint("ingester.sidecar.after")

    async def index(
        self,
        connection: AsyncConnection,
        reads: Sequence[ReadRecord],
        *,
        sidecars: list[Sidecar],
        one_by_one: bool = False,
    ) -> Settled:
        """Write records in the caller's transaction; return the outcome of each.

        The caller must `put` the sidecars that are added to `sidecars` before it commits.
        """
        arrivals, stored = await self.store(connection, reads, one_by_one=one_by_one)
        await erase_parts_again(connection, [*stored, *arrivals.settled])
        new = [item_of(read).sidecar for read, outcome in stored if outcome is Outcome.STORED]
        sidecars += [sidecar for sidecar in new if sidecar is not None]
        with stage(STAGE_SECONDS, "set_aside"):
            await unsettled.add_dead(connection, [(r.record, t) for r, t in arrivals.dead])
            missing = [(r.record, waits(m), m.storage_key) for r, m in arrivals.missing]
            await unsettled.park(connection, missing)
        dead = [(read, Outcome.DEAD) for read, _ in arrivals.dead]
        parked = [(read, Outcome.PARKED) for read, _ in arrivals.missing]
        return [*stored, *arrivals.settled, *dead, *parked]

    async def store(
        self, connection: AsyncConnection, reads: Sequence[ReadRecord], *, one_by_one: bool = False
    ) -> tuple[Arrivals, list[tuple[ReadRecord, Outcome]]]:
        """Write the events that may be stored, in the caller's transaction; return the others."""
        await keep(connection, reads)
        with stage(STAGE_SECONDS, "sort_out"):
            arrivals = await sort_out(connection, reads)
        if arrivals.spans_gone:
            self._spans = partitions.TimePartitions()
        with stage(STAGE_SECONDS, "insert"):
            stored = await self._insert(connection, arrivals, one_by_one=one_by_one)
            await segments.record(connection, _list_kept([*stored, *arrivals.settled]))
        return arrivals, stored

    async def _insert(
        self, connection: AsyncConnection, arrivals: Arrivals, *, one_by_one: bool
    ) -> list[tuple[ReadRecord, Outcome]]:
        now = datetime.now(UTC)
        names = collect_names([item_of(read) for read in arrivals.fresh])
        # after `keep`, whose lock keeps names from being removed; just before they become rows
        if not await self._dictionary.has_names(connection, *names):
            raise RegistrationGone
        pairs = [
            (read, rows_of(item_of(read), self._dictionary, indexed_at=now))
            for read in arrivals.fresh
        ]
        if one_by_one:
            written = await self._one_by_one(connection, pairs, arrivals)
        else:
            written = await indexing.write(connection, [rows for _, rows in pairs])
        new = [item.identity for item in map(item_of, arrivals.fresh) if item.identity in written]
        # our insert waited for an eraser's transaction: a statement after it sees the tombstone
        if await pending_deletions.find_erased(connection, new):
            raise ErasedMeanwhile
        refused = {id(read) for read, _ in arrivals.dead}
        stored = [
            (read, Outcome.STORED if (rows.model, rows.uid) in written else Outcome.DUPLICATE)
            for read, rows in pairs
            if id(read) not in refused
        ]
        fresh = [item_of(read) for read, outcome in stored if outcome is Outcome.STORED]
        await indexing.write_deltas(connection, indexing.build_deltas(fresh, self._dictionary))
        await expire_parts(connection, arrivals, written)
        return stored

    async def _one_by_one(
        self,
        connection: AsyncConnection,
        pairs: Sequence[tuple[ReadRecord, Rows]],
        arrivals: Arrivals,
    ) -> frozenset[Any]:
        """Insert each inference in a savepoint: a refused value costs one event, not the batch."""
        written: set[Any] = set()
        for read, rows in pairs:
            try:
                async with connection.begin_nested():
                    written |= await indexing.write(connection, [rows])
            except REFUSALS as error:
                if not is_rows_fault(error):
                    raise
                event, detail = item_of(read).event, f"Postgres refuses it: {cause_of(error)}"
                ids = event.model_id, event.inference_id
                arrivals.dead.append((read, Rejection("unindexable", detail, *ids)))
        return frozenset(written)


async def _move(
    connection: AsyncConnection, offset_range: OffsetRange, counts: Counter[Outcome]
) -> None:
    counts[Outcome.LOST] += offset_range.lost
    counts[Outcome.NOT_DELIVERED] += offset_range.not_delivered
    partition_id, lo, hi = offset_range.partition_id, offset_range.lo, offset_range.hi
    if offset_range.lost:
        await accounting.add_lost_offsets(
            connection, partition_id, lo=lo, hi=lo + offset_range.lost
        )
    await accounting.add_sequences(connection, partition_id, offset_range.sequences)
    await accounting.move_offsets(
        connection, partition_id, lo=lo, hi=hi, outcomes=counts, last=offset_range.last
    )


class RegistrationGone(Exception):
    """A model was removed while its events were being read, or an unused key or label: read the
    events again, which creates it."""


class ErasedMeanwhile(Exception):
    """An erasure ended between our look at the tombstones and our insert: look again."""


async def keep(connection: AsyncConnection, reads: Sequence[ReadRecord]) -> None:
    """Keep the batch's registrations from being removed, and its partitions from being merged.

    Raises RegistrationGone if one is gone.
    """
    items = [read.result for read in reads if isinstance(read.result, Indexable)]
    models = {item.registration.model for item in items}
    if models and not await registrations.keep(connection, models):
        raise RegistrationGone
    await partitions.share(connection, [item.event.received_at for item in items])


def collect_names(
    items: Sequence[Indexable],
) -> tuple[Mapping[int, set[str]], Mapping[int, set[str]]]:
    """Return the keys and the labels that each model uses in these inferences."""
    keys: defaultdict[int, set[str]] = defaultdict(set)
    labels: defaultdict[int, set[str]] = defaultdict(set)
    for item in items:
        model, metadata = item.registration.model, item.metadata
        keys[model].update(leaf.name for leaf in metadata.leaves)
        keys[model].update(presence.name for presence in metadata.presences)
        predictions = item.predictions.items or ()
        labels[model].update(each.label for each in predictions if each.label is not None)
    return keys, labels


async def expire_parts(
    connection: AsyncConnection, arrivals: Arrivals, written: frozenset[Any]
) -> None:
    """Queue inputs and responses that have outlived their policy on arrival for deletion."""
    late = [
        (*item.identity, part, *item.storage_keys)
        for item, part in arrivals.part_expired
        if item.identity in written
    ]
    if late:
        await enqueue_arrivals(connection, late, cause="expired_arrival")


async def erase_parts_again(
    connection: AsyncConnection, settled: Sequence[tuple[ReadRecord, Outcome]]
) -> None:
    """Queue erased inputs and responses again that a producer may have written again.

    The inferences stay, and the parts are erased or being erased. A spool writes the objects again
    before it sends an event again. An object that the inference also uses in another way stays. The
    row is not locked, because an editor of it may wait for the fence, which we hold: the eraser
    waits for the edit.
    """
    items: dict[Identity, Indexable] = {}
    for read, outcome in settled:
        item = read.result.item if isinstance(read.result, MissingBlob) else read.result
        if outcome is Outcome.DUPLICATE and isinstance(item, Indexable):
            items[item.identity] = item
    gone = await sidecars.without_parts(connection, items)
    again = [
        (*identity, part, *items[identity].storage_keys)
        for (identity, part), others in gone.items()
        if _may_be_back(items[identity], part, others)
    ]
    if again:
        await enqueue_arrivals(connection, again, cause="erased_again")


_KEPT: Final = (Outcome.STORED, Outcome.EXPIRED, Outcome.ERASED_AGAIN)


def _list_kept(settled: Settled) -> Iterator[tuple[Indexable, bool]]:
    """Yield what is stored now (True), and what is queued for erasure: an eraser needs their
    segments."""
    for read, outcome in settled:
        item = read.result.item if isinstance(read.result, MissingBlob) else read.result
        if outcome in _KEPT and isinstance(item, Indexable):
            yield item, outcome is Outcome.STORED


def _may_be_back(item: Indexable, part: Part, others: Collection[str | None]) -> bool:
    """Check whether a deleted part may exist again.

    Without an object of its own, an input may exist in the metadata blob.
    """
    data, response, metadata, _ = item.storage_keys
    key = data if part == "input" else response
    return key not in others if key is not None else part == "input" and metadata is not None


def item_of(read: ReadRecord) -> Indexable:
    """Return the inference of a record that can be stored."""
    if not isinstance(read.result, Indexable):
        raise AssertionError("only indexable records are stored")
    return read.result


def waits(missing: MissingBlob) -> Rejection:
    """Return the reason for which an event is parked."""
    detail = missing.detail or f"{missing.storage_key} is not there yet"
    return Rejection(missing.reason, detail, missing.model_id, missing.inference_id)
