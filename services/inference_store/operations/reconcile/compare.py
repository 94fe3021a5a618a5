"""Compares bucket and index: two streams in the order of their keys, a window of both at a time.

The index is read before the bucket, so that a row that is written meanwhile has its objects in the
listing. A window ends where the shorter of the two pages ends. It is compared, differences are
checked again (judgement.py), and its end is written with the findings, in one transaction: after a
crash it begins again at the last window, and finds the same.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.dialects.postgresql import distinct_on
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inference_store.index import registrations
from inference_store.index.tables import blob_reference, registration
from inference_store.inference.errors import BlobMissing
from inference_store.inference.events import StorageKey, parse_stored
from inference_store.inference.layout import EDITED, SIDECARS, model_segment
from inference_store.objects import Blobs, Found
from inference_store.platform.failpoints import failpoint

from . import judgement, owned_objects, reconciliations, unstored_names
from .bucket_prefixes import BucketPrefix
from .owned_objects import Named
from .reconciliations import MOST_FINDINGS, Finding, Kind, Reconciliation

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
    counts: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)


class Comparison:
    """Compares prefix after prefix.

    Raises ObjectStoreUnavailable and the errors of the database: continue later.
    """

    def __init__(
        self, engine: AsyncEngine, blobs: Blobs, *, apart: Sequence[str] = (), window: int = WINDOW
    ) -> None:
        """`apart`: prefixes of the default bucket that do not belong to inferences."""
        self._engine = engine
        self._blobs = blobs
        self._apart = tuple(f"s3://{blobs.buckets.default}/{prefix}" for prefix in apart if prefix)
        self._window = window

    async def step(
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
            await reconciliations.add_findings(connection, reconciliation.id, findings)
            return await reconciliations.update_reconciliation(
                connection, reconciliation.id, **progress, counts=dict(counts)
            )

    async def _read(self, connection: AsyncConnection, prefix: BucketPrefix, after: str) -> Window:
        segments = await _find_segments(connection, prefix)
        mine = await owned_objects.find_page(
            connection, prefix, segments, after=after, limit=self._window
        )
        others = await find_page(connection, prefix, after=after, limit=self._window)
        ends = [mine.until]
        if len(others) >= self._window:
            ends.append(others[-1].storage_key)
        objects, listed_to = await asyncio.to_thread(self._list, prefix, after)
        until = _find_first([*ends, listed_to])
        named = {item.storage_key: item for item in (*mine.named, *others)}
        if until is not None:
            named = {key: item for key, item in named.items() if key <= until}
            objects = {key: item for key, item in objects.items() if key <= until}
        return Window(until, named, mine.strays, objects)

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
        missing = [item for key, item in window.named.items() if key not in objects]
        missing += [item for item in window.strays if item.storage_key not in objects]
        await self._judge_missing(window, missing)
        unknown = [key for key in objects if key not in window.named]
        await self._judge_unknown(
            window, reconciliation, [k for k in unknown if not self._is_apart(k)]
        )

    async def _judge_missing(self, window: Window, missing: Sequence[Named]) -> None:
        if not missing:
            return
        by_key = {parse_stored(item.storage_key): item for item in missing}
        absent = await asyncio.to_thread(self._find_missing, list(by_key))
        async with self._engine.connect() as connection:
            missing_still = await judgement.find_still_named(
                connection, [by_key[key] for key in absent]
            )
            names = await registrations.names(connection, {item.model for item in missing_still})
        window.counts["missing"] += len(missing_still)
        window.findings += [
            Finding("missing", item.storage_key, names.get(item.model), item.uid)
            for item in missing_still
        ]

    def _find_missing(self, keys: Sequence[StorageKey]) -> list[StorageKey]:
        """Return those that do not exist, asked one by one."""
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="reconcile") as executor:
            exist = list(executor.map(self._exists, keys))
        return [key for key, exists in zip(keys, exist, strict=True) if not exists]

    def _exists(self, key: StorageKey) -> bool:
        try:
            self._blobs.head(key)
        except BlobMissing:
            return False
        return True

    async def _judge_unknown(
        self, window: Window, reconciliation: Reconciliation, unknown: Sequence[str]
    ) -> None:
        objects = window.objects
        old = [
            k
            for k in unknown
            if judgement.is_older(objects[k].modified_at, reconciliation.orphans_before)
        ]
        window.counts["young" if reconciliation.orphans_before else "unjudged"] += len(
            unknown
        ) - len(old)
        if not old:
            return
        async with self._engine.connect() as connection:
            awaited = await unstored_names.find_named(connection, reconciliation.id, old)
            orphans = sorted(await judgement.find_unknown(connection, set(old) - awaited))
        window.counts["awaited"] += len(awaited)
        window.counts["orphans"] += len(orphans)
        window.counts["orphan_bytes"] += sum(objects[key].size for key in orphans)
        window.findings += [
            Finding("orphan", k, bytes=objects[k].size, modified_at=objects[k].modified_at)
            for k in orphans
        ]

    def _is_apart(self, key: str) -> bool:
        return key.startswith(self._apart) if self._apart else False


def _find_first(ends: Sequence[str | None]) -> str | None:
    finite = [end for end in ends if end is not None]
    return min(finite) if finite else None


async def _find_segments(
    connection: AsyncConnection, prefix: BucketPrefix
) -> dict[str, tuple[int, str]]:
    """Return the models that may own captures under a prefix, by their segments in keys."""
    if prefix.prefix in {SIDECARS, EDITED}:
        return {}
    rows = await connection.execute(select(registration.c.model_id, registration.c.model))
    segments = {model_segment(row.model_id): (row.model, row.model_id) for row in rows}
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
