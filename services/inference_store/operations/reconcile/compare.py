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
from urllib.parse import quote

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inference_store.index import registrations
from inference_store.index.tables import registration
from inference_store.inference.errors import BlobMissing
from inference_store.inference.events import StorageKey, parse_stored
from inference_store.inference.layout import EDITED, SIDECARS
from inference_store.objects import Blobs, Found
from inference_store.platform.failpoints import failpoint

from . import judgement, owned, reconciliations, referenced, unstored_names
from .bucket_prefixes import BucketPrefix
from .owned import Named
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
    known: dict[str, Named]
    strays: Sequence[Named]
    objects: Mapping[str, Found]
    counts: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)


class Comparison:
    """Compares prefix after prefix.

    Raises BlobsAway and the errors of the database: continue later.
    """

    def __init__(
        self, engine: AsyncEngine, blobs: Blobs, *, apart: Sequence[str] = (), window: int = WINDOW
    ) -> None:
        """`apart`: prefixes of the default bucket that do not belong to inferences."""
        self._engine = engine
        self._blobs = blobs
        self._apart = tuple(f"s3://{blobs.buckets.default}/{prefix}" for prefix in apart if prefix)
        self._window = window

    async def step(self, one: Reconciliation, places: Sequence[BucketPrefix]) -> Reconciliation:
        """Compare the next window, and store the progress."""
        place = places[one.place]
        async with self._engine.connect() as connection:
            window = await self._read(connection, place, one.after)
        await self._judge(window, one)
        failpoint("reconcile.window.after")
        if window.until is None:
            progress: dict[str, Any] = {"place": one.place + 1, "after": ""}
        else:
            progress = {"after": window.until}
        counts = Counter(one.counts)
        counts.update(window.counts)
        kept = [f for f in window.findings if one.count(_COUNTED[f.kind]) < MOST_FINDINGS]
        async with self._engine.begin() as connection:
            await reconciliations.add_findings(connection, one.id, kept)
            return await reconciliations.update(connection, one.id, **progress, counts=dict(counts))

    async def _read(self, connection: AsyncConnection, place: BucketPrefix, after: str) -> Window:
        segments = await _find_segments(connection, place)
        mine = await owned.find_page(connection, place, segments, after=after, limit=self._window)
        others = await referenced.find_page(connection, place, after=after, limit=self._window)
        ends = [mine.until]
        if len(others) >= self._window:
            ends.append(others[-1].storage_key)
        found, listed_to = await asyncio.to_thread(self._list, place, after)
        until = _find_first([*ends, listed_to])
        known = {one.storage_key: one for one in (*mine.named, *others)}
        if until is not None:
            known = {key: one for key, one in known.items() if key <= until}
            found = {key: one for key, one in found.items() if key <= until}
        return Window(until, known, mine.strays, found)

    def _list(self, place: BucketPrefix, after: str) -> tuple[dict[str, Found], str | None]:
        """List the objects after `after`; return also the key up to which they are complete, None:
        to the end."""
        start = after.removeprefix(f"s3://{place.bucket}/") if after else ""
        page = self._blobs.page(place.bucket, place.listed, after=start, limit=self._window)
        found = {str(one.place): one for one in page}
        if len(page) < self._window:
            return found, None
        return found, str(page[-1].place)

    async def _judge(self, window: Window, one: Reconciliation) -> None:
        objects, counts = window.objects, window.counts
        counts["objects"] += len(objects)
        counts["bytes"] += sum(each.size for each in objects.values())
        counts["named"] += len(window.known) + len(window.strays)
        missing = [each for key, each in window.known.items() if key not in objects]
        missing += [each for each in window.strays if each.storage_key not in objects]
        await self._judge_missing(window, missing)
        unknown = [key for key in objects if key not in window.known]
        await self._judge_unknown(window, one, [k for k in unknown if not self._is_apart(k)])

    async def _judge_missing(self, window: Window, missing: Sequence[Named]) -> None:
        if not missing:
            return
        places = {parse_stored(each.storage_key): each for each in missing}
        gone = await asyncio.to_thread(self._find_missing, list(places))
        async with self._engine.connect() as connection:
            still = await judgement.find_still_named(connection, [places[key] for key in gone])
            names = await registrations.names(connection, {each.model for each in still})
        window.counts["missing"] += len(still)
        window.findings += [
            Finding("missing", each.storage_key, names.get(each.model), each.uid) for each in still
        ]

    def _find_missing(self, keys: Sequence[StorageKey]) -> list[StorageKey]:
        """Return those that do not exist, asked one by one."""
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="reconcile") as executor:
            there = list(executor.map(self._exists, keys))
        return [key for key, is_there in zip(keys, there, strict=True) if not is_there]

    def _exists(self, key: StorageKey) -> bool:
        try:
            self._blobs.head(key)
        except BlobMissing:
            return False
        return True

    async def _judge_unknown(
        self, window: Window, one: Reconciliation, unknown: Sequence[str]
    ) -> None:
        found = window.objects
        old = [k for k in unknown if judgement.is_older(found[k].modified_at, one.orphans_before)]
        window.counts["young" if one.orphans_before else "unjudged"] += len(unknown) - len(old)
        if not old:
            return
        async with self._engine.connect() as connection:
            told = await unstored_names.find_named(connection, one.id, old)
            orphans = sorted(await judgement.find_unknown(connection, set(old) - told))
        window.counts["awaited"] += len(told)
        window.counts["orphans"] += len(orphans)
        window.counts["orphan_bytes"] += sum(found[key].size for key in orphans)
        window.findings += [
            Finding("orphan", k, bytes=found[k].size, modified_at=found[k].modified_at)
            for k in orphans
        ]

    def _is_apart(self, key: str) -> bool:
        return key.startswith(self._apart) if self._apart else False


def _find_first(ends: Sequence[str | None]) -> str | None:
    known = [end for end in ends if end is not None]
    return min(known) if known else None


async def _find_segments(
    connection: AsyncConnection, place: BucketPrefix
) -> dict[str, tuple[int, str]]:
    """Return the models that may own captures under a prefix, by their segments in keys."""
    if place.prefix in {SIDECARS, EDITED}:
        return {}
    rows = await connection.execute(select(registration.c.model_id, registration.c.model))
    found = {quote(row.model_id, safe=""): (row.model, row.model_id) for row in rows}
    if place.segment is None:
        return found
    return {place.segment: found[place.segment]} if place.segment in found else {}
