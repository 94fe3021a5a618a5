"""Erases the orphans of a report, batch by batch. The order makes every crash harmless:

1. judge    which objects of the report are still unnamed and not held; write them to the ledger
2. claim    check it once more, in the fence: from its commit on no event that names one is stored
3. age      read when each was written: what was written again after the report stays
4. delete   in every version, and verify by listing again
5. forget   their names, and record it for the certificate and the report, in one transaction

A crash before 5 leaves the names, and the next turn begins again at 2.
"""

import asyncio
import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

import structlog
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inference_store.erasure import erasures
from inference_store.erasure.certificates import erased
from inference_store.erasure.erasures import Erasure, objects, obstacles
from inference_store.erasure.ledger import Ledger
from inference_store.erasure.mark import marks
from inference_store.inference.events import StorageKey, parse_stored
from inference_store.objects import Blobs, Deleted, DeleteFault
from inference_store.operations.reconcile import age_bound, judgement, orphans, unstored_names
from inference_store.platform.failpoints import failpoint
from inference_store.platform.metrics import ERASED, OBJECTS_DELETED, STEP_SECONDS
from inference_store.platform.settings import RetentionSettings
from inference_store.platform.stages import stage

from .certifier import Certifier
from .erasure_failures import format_failures, merge_faults
from .leadership_check import LeadershipCheck
from .marker import ACTOR
from .uncertified import end_without_key

_BATCH: Final = 1000
_THREADS: Final = 16
_ASKED: Final = 100
_log = structlog.get_logger()


class _Progress:
    """How far an erasure is in this process."""

    def __init__(self) -> None:
        self.after = ""
        self.error: str | None = None
        # names in events that are not stored, up to where they were collected
        self.seen: dict[str, int] = {}
        self.gathered = False


class Orphans:
    """Erases orphans. Raises BlobsAway and the errors of the database: try again."""

    def __init__(  # noqa: PLR0917
        self,
        settings: RetentionSettings,
        engine: AsyncEngine,
        blobs: Blobs,
        ledger: Ledger,
        check: LeadershipCheck,
        certifier: Certifier | None,
        *,
        batch: int = _BATCH,
    ) -> None:
        self._engine = engine
        self._blobs = blobs
        self._ledger = ledger
        self._check = check
        self._certifier = certifier
        self._grace = timedelta(seconds=settings.reconcile_grace_seconds)
        self._batch = batch
        self._progress: dict[UUID, _Progress] = {}

    async def work(self, erasure: Erasure, *, seconds: float) -> bool:
        """Work on an erasure; False: call again. True: it is over, or nothing can be done now."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            await self._check.confirm_step()
            async with self._engine.connect() as connection:
                state = await erasures.state_of(connection, erasure.id)
            if state in {"cancelling", "cancelled"}:
                body = {"erasure": str(erasure.id)}
                await self._ledger.write("erasure_cancelled", body, actor=ACTOR)
                return True
            progress = self._progress.setdefault(erasure.id, _Progress())
            await self._gather_names(erasure, progress)
            if not await self._step(erasure, progress):
                del self._progress[erasure.id]
                await self._finish(erasure, progress.error)
                return True
        return False

    async def _gather_names(self, erasure: Erasure, progress: _Progress) -> None:
        """Collect names of what is not stored: all of them once in a process, later new ones."""
        if progress.gathered:
            return
        async with self._engine.begin() as connection:
            # in the fence: a lower number may become visible after a higher one
            await marks.gate_exclusive(connection)
            seen = await unstored_names.find_newest(connection)
        async with self._engine.begin() as connection:
            await orphans.ensure_report(connection, _parse_report(erasure))
            await unstored_names.gather(connection, _parse_report(erasure), self._blobs.buckets)
        progress.seen.update(seen)
        progress.gathered = True

    async def _step(self, erasure: Erasure, progress: _Progress) -> bool:
        """Erase at most one batch of objects after the position; False if there are none."""
        async with self._engine.connect() as connection:
            after = progress.after
            keys = await objects.page(connection, erasure.id, after=after, limit=self._batch)
        if not keys:
            return await self._name_next(erasure, progress)
        progress.after = keys[-1]
        with stage(STEP_SECONDS, "claim"):
            claimed = await self._claim(erasure, progress, keys)
        failpoint("orphans.claim.after")
        if claimed:
            found = await self._measure_aged(erasure, claimed)
            await self._erase(erasure, progress, found)
        return True

    async def _name_next(self, erasure: Erasure, progress: _Progress) -> bool:
        """Write the next orphans of the report to the ledger; False if there are no more."""
        report = _parse_report(erasure)
        async with self._engine.begin() as connection:
            if not await erasures.advance(connection, erasure.id, "marking"):
                return True
            keys = await orphans.find_following(connection, report, after=progress.after)
            if not keys:
                return False
            judged = await orphans.judge(connection, report, keys)
            await self._release(connection, erasure, keys, judged)
        failpoint("orphans.batch.before")
        if not judged.doomed:
            progress.after = keys[-1]
            return True
        body = objects.batch(erasure.id, judged.doomed)
        if not await self._ledger.write("orphans_batch", body, actor=ACTOR):
            progress.after = keys[-1]  # another erasure has named them all
        failpoint("orphans.batch.after")
        return True

    async def _claim(self, erasure: Erasure, progress: _Progress, keys: Sequence[str]) -> list[str]:
        """Return those that may be deleted now; from the commit on nothing is cancelled.

        A hold or an event that comes before the fence is released keeps its own.
        """
        report, gone = _parse_report(erasure), await self._find_deleted(keys)
        left = [key for key in keys if key not in gone]
        async with self._engine.begin() as connection:
            await marks.gate_exclusive(connection)
            await unstored_names.gather(connection, report, self._blobs.buckets, progress.seen)
            judged = await orphans.judge(connection, report, left)
            await self._release(connection, erasure, left, judged)
            doomed = sorted([*judged.doomed, *gone])
            if not doomed or not await erasures.begin_deleting(connection, erasure.id):
                return []
            await objects.claim(connection, doomed)
        return doomed

    async def _find_deleted(self, keys: Sequence[str]) -> set[str]:
        """Return those that a claim before a crash has deleted; the certificate must name them."""
        async with self._engine.connect() as connection:
            claimed = await objects.claimed(connection, keys)
        found = await asyncio.to_thread(self._inspect, sorted(claimed))
        return {key for key, (_, at) in found.items() if at is None}

    async def _release(
        self,
        connection: AsyncConnection,
        erasure: Erasure,
        keys: Collection[str],
        judged: orphans.Judgement,
    ) -> None:
        """Remove what stays from the erasure, and let the report say why."""
        kept = set(keys) - set(judged.doomed) - set(judged.held)
        await objects.remove(connection, kept)
        await objects.keep(connection, erasure.id, judged.held)
        await orphans.record_state(connection, _parse_report(erasure), kept, "kept")
        await orphans.record_state(connection, _parse_report(erasure), judged.held, "held")

    async def _measure_aged(self, erasure: Erasure, keys: Sequence[str]) -> Mapping[str, int]:
        """Return the sizes of those that were not written since the report, nor may be in use."""
        before = datetime.fromisoformat((erasure.asked or {})["before"])
        async with self._engine.connect() as connection:
            waiting = await age_bound.list_waiting(connection, now=before)
        if waiting and (since := min(at for at, _ in waiting)) != age_bound.NEVER:
            before = min(before, since - self._grace)
        elif waiting:
            before = age_bound.NEVER
        found = await asyncio.to_thread(self._inspect, keys)
        old = {
            key: size
            for key, (size, at) in found.items()
            if at is None or judgement.is_older(at, before)
        }
        young = set(keys) - set(old)
        if young:
            async with self._engine.begin() as connection:
                await objects.remove(connection, young)
                await orphans.record_state(connection, _parse_report(erasure), young, "kept")
        return old

    def _inspect(self, keys: Sequence[str]) -> dict[str, tuple[int, datetime | None]]:
        """Return size and age of each; no age: it is gone, except perhaps for older versions."""
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="orphans") as executor:
            return dict(zip(keys, executor.map(self._inspect_one, keys), strict=True))

    def _inspect_one(self, key: str) -> tuple[int, datetime | None]:
        storage_key = parse_stored(key)
        found = self._blobs.page(storage_key.bucket, storage_key.key, after="", limit=1)
        if found and found[0].place == storage_key:
            return found[0].size, found[0].modified_at
        return 0, None

    async def _erase(self, erasure: Erasure, progress: _Progress, sizes: Mapping[str, int]) -> None:
        keys = [parse_stored(key) for key in sorted(sizes)]
        if not keys:
            return
        failpoint("retention.object_delete.before")
        with stage(STEP_SECONDS, "delete"):
            deleted = await asyncio.to_thread(self._blobs.delete_objects, keys)
        failpoint("retention.object_delete.after")
        async with self._engine.begin() as connection:
            await erasures.advance(connection, erasure.id, "verifying")
        with stage(STEP_SECONDS, "verify"):
            left = await asyncio.to_thread(self._blobs.still_there, keys)
        faults = merge_faults(deleted, keys, left)
        progress.error = progress.error or format_failures(faults)
        stays = {fault.key for fault in faults}
        gone = [key for key in keys if key not in stays]
        failpoint("orphans.forget.before")
        with stage(STEP_SECONDS, "forget"):
            await self._forget(erasure, gone, deleted, sizes)
            await self._record_failures(erasure, faults, gone)
        failpoint("orphans.forget.after")

    async def _forget(
        self,
        erasure: Erasure,
        gone: Sequence[StorageKey],
        deleted: Deleted,
        sizes: Mapping[str, int],
    ) -> None:
        if not gone:
            return
        keys = [str(key) for key in gone]
        size = deleted.bytes or sum(sizes[key] for key in keys)
        async with self._engine.begin() as connection:
            await objects.remove(connection, keys)
            await orphans.record_state(connection, _parse_report(erasure), keys, "erased")
            await erasures.count(
                connection, erasure.id, objects=len(keys), versions=deleted.versions, bytes=size
            )
            if self._certifier is not None:
                key = await self._certifier.key_of(connection, erasure.id)
                scope = erasure.scope
                await erased.tell(connection, key, erasure.id, scope=scope, uids=(), objects=gone)
        OBJECTS_DELETED.inc(len(keys))
        ERASED.labels(erasure.scope).inc(len(keys))

    async def _record_failures(
        self, erasure: Erasure, faults: Sequence[DeleteFault], gone: Sequence[StorageKey]
    ) -> None:
        """Store what blocks the erasure, and until when."""
        if not faults and erasure.state != "failed":
            return
        ends = await asyncio.to_thread(self._find_lock_ends, faults[:_ASKED])
        found = [(str(f.key), f.code, f.message, ends.get(f.key)) for f in faults]
        async with self._engine.begin() as connection:
            await obstacles.note(connection, erasure.id, found, [str(key) for key in gone])

    def _find_lock_ends(self, faults: Sequence[DeleteFault]) -> dict[StorageKey, datetime | None]:
        return {fault.key: self._blobs.locked_until(fault.key) for fault in faults if fault.held}

    async def _finish(self, erasure: Erasure, error: str | None) -> None:
        async with self._engine.begin() as connection:
            certifying = self._certifier is not None
            state = await objects.finish(connection, erasure, error=error, certifying=certifying)
            if state != "failed":
                await unstored_names.remove_names(connection, _parse_report(erasure))
            erasure = await erasures.find(connection, erasure.id) or erasure
        if state == "certifying" and self._certifier is not None:
            state = await self._certifier.certify(erasure, state)
        elif state == "deleted":
            await end_without_key(self._engine, erasure)
        _log.info("erasure", action="erasure", id=str(erasure.id), state=state, error=error)


def _parse_report(erasure: Erasure) -> UUID:
    return UUID((erasure.asked or {})["report"])
