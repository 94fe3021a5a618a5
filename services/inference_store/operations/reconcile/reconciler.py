"""Carries out reconciliations, step by step: whoever works may stop between two steps."""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import structlog
from sqlalchemy import func, select, text
from sqlalchemy.dialects.postgresql import distinct_on
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inference_store.access import EVERYTHING
from inference_store.index import registrations, tables
from inference_store.index.registrations import refuse_model
from inference_store.index.tables import (
    blob_reference,
    erased_total,
    inference,
    kafka_partition,
    reconciliation,
    registration,
)
from inference_store.inference.errors import BlobMissing, StoreError
from inference_store.inference.events import parse_stored
from inference_store.inference.events.event import find_object
from inference_store.inference.layout import EDITED, SIDECARS, TRUTH, segment_of
from inference_store.objects import Blobs, Found
from inference_store.platform.failpoints import failpoint
from inference_store.platform.settings import KafkaSettings, ReconcileSettings

from . import owned, stored_reports
from .owned import Named
from .stored_reports import (
    MOST_FINDINGS,
    BucketPrefix,
    Finding,
    Kind,
    Reconciliation,
    parse_prefixes,
)

_DAY = timedelta(days=1)
# The time that ingesters have to read what is in the topic when a reconciliation begins.
_READING_TIME = timedelta(seconds=15)
_RETRY_SECONDS = 0.5
_log = structlog.get_logger()


# Compares bucket and index: two streams in the order of their keys, a window of both at a time.
#
# The index is read before the bucket, so that a row that is written meanwhile has its objects in
# the listing. A window ends where the shorter of the two pages ends. It is compared, differences
# are checked again (`owned`), and its end is written with the findings, in one transaction:
# after a crash it begins again at the last window, and finds the same.

WINDOW = 10_000

_THREADS = 16
_COUNTED: Mapping[Kind, str] = {
    "orphan": "orphans",
    "missing": "missing",
    "unreadable": "unreadable",
}


@dataclass(slots=True)
class Window:
    """A part of both streams: all that lies after `after`, up to `until` (None: to the end)."""

    until: str | None
    named: dict[str, Named]
    strays: Sequence[Named]
    objects: Mapping[str, Found]
    # of what was listed for it, or for the window before it
    sizes: Mapping[str, int]
    counts: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)


class Reconciler:
    """Compares, and stores the results.

    Raises ObjectStoreUnavailable and the errors of the database.
    """

    def __init__(
        self,
        settings: ReconcileSettings,
        engine: AsyncEngine,
        blobs: Blobs,
        *,
        kafka: KafkaSettings | None,
        window: int = WINDOW,
        patience: timedelta = _READING_TIME,
    ) -> None:
        """`kafka`: where events may be unread; None: unknown, so that no orphan is judged.

        `patience`: how long to wait for ingesters to read them.
        """
        self._settings = settings
        self._kafka = kafka
        self._patience = patience
        self._engine = engine
        self._blobs = blobs
        # the prefixes of the default bucket where the store keeps objects of its own
        ledger = str(getattr(settings, "ledger_prefix", "")).strip("/")
        own = (f"{prefix}/" for prefix in (ledger, "certificates") if prefix)
        self._apart = tuple(f"s3://{blobs.buckets.default}/{prefix}" for prefix in own)
        self._window = window
        # the objects that were listed last, with their sizes, and the segments that were named last
        self._listed: Mapping[str, int] = {}
        self._named: Set[str] = frozenset()

    async def find_due(self, *, scheduled: bool) -> Reconciliation | None:
        """Return the reconciliation to work on; with `scheduled`, once a day a new one."""
        async with self._engine.begin() as connection:
            unfinished = await stored_reports.find_unfinished(connection, repairs=("none",))
            if unfinished is not None or not scheduled:
                return unfinished
            last = await stored_reports.find_last_request(connection, "schedule")
            if last is not None and datetime.now(UTC) - last < _DAY:
                return None
            return await stored_reports.request_reconciliation(
                connection, model_id=None, cause="schedule"
            )

    def list_prefixes(self, reconciliation: Reconciliation) -> list[BucketPrefix]:
        """Return the prefixes that it reads. Raises Invalid for settings that do not fit."""
        return parse_prefixes(
            self._settings.reconcile_prefixes, self._blobs.buckets, model_id=reconciliation.model_id
        )

    async def step(self, reconciliation: Reconciliation) -> Reconciliation:
        """Do the next step; repeatable. A setting that does not fit ends the reconciliation."""
        try:
            prefixes = self.list_prefixes(reconciliation)
        except StoreError as error:
            return await self._finish(reconciliation, error=error.detail)
        if reconciliation.places and reconciliation.places != [str(prefix) for prefix in prefixes]:
            return await self._finish(
                reconciliation, error="the prefixes were changed while it was running"
            )
        if reconciliation.state in {"pending", "repairing"}:
            return await self.begin(reconciliation, prefixes)
        if reconciliation.state == "comparing" and reconciliation.place < len(prefixes):
            return await self._compare(reconciliation, prefixes)
        return await self._finish(reconciliation, error=await self._find_fault(reconciliation))

    async def _find_fault(self, reconciliation: Reconciliation) -> str | None:
        """Return why what was compared is nothing: a model without a registration and objects.

        One with objects alone is compared and rebuilt: its registration may be what was lost.
        """
        model_id = reconciliation.model_id
        if model_id is None or reconciliation.count("objects"):
            return None
        async with self._engine.connect() as connection:
            if await registrations.find_by_ids(connection, [model_id]):
                return None
            unknown = await refuse_model(connection, model_id, EVERYTHING)
        return f"{unknown.detail} No object of it is under {', '.join(reconciliation.places)}."

    async def begin(
        self, reconciliation: Reconciliation, prefixes: list[BucketPrefix]
    ) -> Reconciliation:
        """Find what may be judged, and what unstored events name.

        The ingesters get some time to read what is in the topic now. Until then the reconciliation
        does not change, and this is called again.
        """
        before = None
        self._listed, self._named = {}, frozenset()
        try:
            reconciliation = await self._note_end(reconciliation)
            if await self._is_waiting(reconciliation):
                await asyncio.sleep(_RETRY_SECONDS)
                return reconciliation
            before, because = await self._find_bound()
        except stored_reports.NotKnown as error:
            because = str(error)
        async with self._engine.begin() as connection:
            await owned.store_names(connection, reconciliation.id, self._blobs.buckets)
            return await stored_reports.update_reconciliation(
                connection,
                reconciliation.id,
                state="comparing",
                started_at=func.coalesce(tables.reconciliation.c.started_at, func.now()),
                places=[str(prefix) for prefix in prefixes],
                place=0,
                after="",
                orphans_before=before,
                because=because,
            )

    async def _note_end(self, reconciliation: Reconciliation) -> Reconciliation:
        if reconciliation.noted_at is not None:
            return reconciliation
        async with self._engine.begin() as connection:
            at, noted = await stored_reports.note_end(connection, self._kafka)
            return await stored_reports.update_reconciliation(
                connection, reconciliation.id, noted_at=at, noted=noted
            )

    async def _is_waiting(self, reconciliation: Reconciliation) -> bool:
        """Return whether ingesters still have time to read up to this reconciliation's note."""
        at, kafka = reconciliation.noted_at, self._kafka
        if at is None or kafka is None or datetime.now(UTC) - at > self._patience:
            return False
        async with self._engine.connect() as connection:
            if not await stored_reports.read_offsets(connection, kafka):  # nobody ever has
                return False
            return not await stored_reports.is_read(connection, kafka, reconciliation.noted or {})

    async def _find_bound(self) -> tuple[datetime, str]:
        """Return the bound by the newest note up to which everything is read, perhaps of an earlier
        reconciliation. Raises NotKnown."""
        assert self._kafka is not None, "without Kafka there is no note"
        noted_at, grace = None, self._settings.reconcile_grace_seconds
        async with self._engine.connect() as connection:
            for earlier in await stored_reports.list_noted(connection):
                if await stored_reports.is_read(connection, self._kafka, earlier.noted or {}):
                    noted_at = earlier.noted_at
                    break
            return await stored_reports.find_bound(connection, noted_at, grace_seconds=grace)

    async def _finish(
        self, reconciliation: Reconciliation, *, error: str | None = None
    ) -> Reconciliation:
        topic = "" if self._kafka is None else self._kafka.kafka_truth_topic
        books = None if error else await count_against_accounting(self._engine, topic)
        async with self._engine.begin() as connection:
            await owned.remove_names(connection, reconciliation.id)
            await stored_reports.update_reconciliation(connection, reconciliation.id, books=books)
            ended = await stored_reports.finish_reconciliation(
                connection, reconciliation.id, error=error
            )
        _log.info(
            "reconciliation",
            action="reconciliation",
            id=str(reconciliation.id),
            state=ended.state,
            error=error,
            **ended.counts,
        )
        return ended

    async def _compare(
        self, reconciliation: Reconciliation, prefixes: Sequence[BucketPrefix]
    ) -> Reconciliation:
        """Compare the next window, and store the progress."""
        prefix = prefixes[reconciliation.place]
        async with self._engine.connect() as connection:
            window = await self._read(connection, prefix, reconciliation.after)
        await self._judge(window, reconciliation)
        failpoint("reconcile.window.after")
        if window.until is None:
            progress: dict[str, Any] = {"place": reconciliation.place + 1, "after": ""}
        else:
            progress = {"after": window.until}
        counts = Counter(reconciliation.counts)
        counts.update(window.counts)
        findings = [
            finding
            for finding in window.findings
            if reconciliation.count(_COUNTED[finding.kind]) < MOST_FINDINGS
        ]
        async with self._engine.begin() as connection:
            await stored_reports.add_findings(connection, reconciliation.id, findings)
            return await stored_reports.update_reconciliation(
                connection, reconciliation.id, **progress, counts=dict(counts)
            )

    async def _read(self, connection: AsyncConnection, prefix: BucketPrefix, after: str) -> Window:
        segments = await _find_segments(connection, prefix)
        mine, strays, end = await owned.find_page(
            connection, prefix, segments, after=after, limit=self._window
        )
        others = await find_page(connection, prefix, after=after, limit=self._window)
        ends = [end]
        if len(others) >= self._window:
            ends.append(others[-1].storage_key)
        objects, listed_to = await asyncio.to_thread(self._list, prefix, after)
        until = min((end for end in (*ends, listed_to) if end is not None), default=None)
        named = {item.storage_key: item for item in (*mine, *others)}
        # a segment's own key is near those of its captures, and not always in their window
        listed = {key: item.size for key, item in objects.items()}
        sizes, self._listed = {**self._listed, **listed}, listed
        if until is not None:
            named = {key: item for key, item in named.items() if key <= until}
            strays = [item for item in strays if item.position <= until]
            objects = {key: item for key, item in objects.items() if key <= until}
        return Window(until, named, strays, objects, sizes)

    def _list(self, prefix: BucketPrefix, after: str) -> tuple[dict[str, Found], str | None]:
        """List the objects after `after`; return also the key up to which they are complete, None:
        to the end."""
        start = after.removeprefix(f"s3://{prefix.bucket}/") if after else ""
        page = self._blobs.page(prefix.bucket, prefix.listed, after=start, limit=self._window)
        objects = {str(item.place): item for item in page}
        if len(page) < self._window:
            return objects, None
        return objects, str(page[-1].place)

    async def _judge(self, window: Window, reconciliation: Reconciliation) -> None:
        objects, counts = window.objects, window.counts
        counts["objects"] += len(objects)
        counts["bytes"] += sum(item.size for item in objects.values())
        counts["named"] += len(window.named) + len(window.strays)
        named = [*window.named.values(), *window.strays]
        places = {item.storage_key: find_object(item.storage_key) for item in named}
        missing = [
            item
            for item in named
            if window.sizes.get(places[item.storage_key][0], -1) < places[item.storage_key][1]
        ]
        await self._judge_missing(window, missing)
        used = {place for place, _ in places.values()}
        unknown = [key for key in objects if key not in used and key not in self._named]
        self._named = {place for place, end in places.values() if end}
        judged = [key for key in unknown if not key.startswith(self._apart)]
        await self._judge_unknown(window, reconciliation, judged)

    async def _judge_missing(self, window: Window, missing: Sequence[Named]) -> None:
        if not missing:
            return
        absent = await asyncio.to_thread(self._find_missing, missing)
        async with self._engine.connect() as connection:
            missing_still = await owned.find_still_named(connection, absent)
            names = await registrations.names(connection, {item.model for item in missing_still})
        window.counts["missing"] += len(missing_still)
        window.findings += [
            Finding("missing", item.storage_key, names.get(item.model), item.uid)
            for item in missing_still
        ]

    def _find_missing(self, named: Sequence[Named]) -> list[Named]:
        """Return those whose object is not there, or ends before them; one request for each."""
        ends = {item: find_object(item.storage_key) for item in named}
        places = sorted({place for place, _ in ends.values()})
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="reconcile") as executor:
            sizes = dict(zip(places, executor.map(self._measure, places), strict=True))
        return [item for item, (place, end) in ends.items() if sizes[place] < end]

    def _measure(self, storage_key: str) -> int:
        try:
            return self._blobs.head(parse_stored(storage_key))
        except BlobMissing:
            return -1

    async def _judge_unknown(
        self, window: Window, reconciliation: Reconciliation, unknown: Sequence[str]
    ) -> None:
        objects = window.objects
        before = reconciliation.orphans_before
        old = [key for key in unknown if owned.is_older(objects[key].modified_at, before)]
        window.counts["young" if before else "unjudged"] += len(unknown) - len(old)
        if not old:
            return
        async with self._engine.connect() as connection:
            awaited = await owned.find_named(connection, reconciliation.id, old)
            orphans = sorted(await owned.find_unknown(connection, set(old) - awaited))
        window.counts["awaited"] += len(awaited)
        window.counts["orphans"] += len(orphans)
        window.counts["orphan_bytes"] += sum(objects[key].size for key in orphans)
        window.findings += [
            Finding("orphan", k, bytes=objects[k].size, modified_at=objects[k].modified_at)
            for k in orphans
        ]


async def count_against_accounting(engine: AsyncEngine, truth_topic: str) -> dict[str, int]:
    """Count inferences stored by the offset accounting, rebuilt and erased since, and indexed now.

    The difference is 0 if nothing is lost. All numbers are of one moment. `truth_topic`: whose
    messages are no inferences.
    """
    of_events = kafka_partition.c.topic != truth_topic
    async with engine.connect() as connection:
        await connection.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"))
        stored = await connection.scalar(
            select(func.sum(kafka_partition.c.stored)).where(of_events)
        )
        rebuilt = await connection.scalar(
            select(func.sum(reconciliation.c.counts["rebuilt"].as_integer()))
        )
        erased = await connection.scalar(select(erased_total.c.inferences))
        indexed = await connection.scalar(select(func.count()).select_from(inference))
    named = {"stored": stored, "rebuilt": rebuilt, "erased": erased, "indexed": indexed}
    counts = {name: int(count or 0) for name, count in named.items()}
    expected = counts["stored"] + counts["rebuilt"] - counts["erased"]
    return {**counts, "difference": counts["indexed"] - expected}


async def _find_segments(
    connection: AsyncConnection, prefix: BucketPrefix
) -> dict[str, tuple[int, str]]:
    """Return the models that may own captures under a prefix, by their segments in keys."""
    if prefix.prefix in {SIDECARS, EDITED, TRUTH}:
        return {}
    rows = await connection.execute(select(registration.c.model_id, registration.c.model))
    segments = {segment_of(row.model_id): (row.model, row.model_id) for row in rows}
    if prefix.segment is None:
        return segments
    return {prefix.segment: segments[prefix.segment]} if prefix.segment in segments else {}


async def find_page(
    connection: AsyncConnection, prefix: BucketPrefix, *, after: str, limit: int
) -> Sequence[Named]:
    """Return the first storage keys of a prefix after `after`, each with one inference that uses
    it.

    Fewer than `limit`: there are no more.
    """
    here = blob_reference.c
    query = (
        select(here.storage_key, func.min(here.model).label("model"))
        .where(here.storage_key > max(after, prefix.first), here.storage_key < prefix.end)
        .group_by(here.storage_key)
        .order_by(here.storage_key)
        .limit(limit)
    )
    first = query.subquery()
    owners = (
        select(here.storage_key, here.model, here.uid)
        .join(first, (first.c.storage_key == here.storage_key) & (first.c.model == here.model))
        .ext(distinct_on(here.storage_key))
        .order_by(here.storage_key, here.uid)
    )
    return [Named(*row) for row in await connection.execute(owners)]
