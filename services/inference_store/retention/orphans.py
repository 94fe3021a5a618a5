"""Erases the orphans of a report, batch by batch. The order makes every crash harmless:

1. judge    what of the report nothing names still, and no hold keeps; its keys go to the ledger
2. claim    the same once more, in the gate: from its commit on no event that names one is stored
3. look     when each was written: what was written again since the report stays
4. delete   in every version, and see them gone by listing again
5. forget   their names, and tell the certificate and the report, in one transaction

A crash before 5 leaves the names, and the next turn begins at 2 again.
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
from inference_store.operations.reconcile import awaited, judging, named, orphans
from inference_store.platform.failpoints import failpoint
from inference_store.platform.metrics import ERASED, OBJECTS_DELETED, STEP_SECONDS
from inference_store.platform.settings import RetentionSettings
from inference_store.platform.stages import stage

from .certifier import Certifier
from .erasure_failures import format_failures, merge_faults
from .leadership_check import LeadershipCheck
from .marker import ACTOR
from .uncertified import without_key

_BATCH: Final = 1000
_THREADS: Final = 16
_ASKED: Final = 100
_log = structlog.get_logger()


class _Place:
    """How far an erasure is in this process."""

    def __init__(self) -> None:
        self.after = ""
        self.error: str | None = None
        # of the names of events that are not stored, up to where they were gathered
        self.seen: dict[str, int] = {}
        self.gathered = False


class Orphans:
    """Works erasures of orphans off. Raises BlobsAway and the database's trouble: try again."""

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
        self._places: dict[UUID, _Place] = {}

    async def work(self, one: Erasure, *, seconds: float) -> bool:
        """Whether it is over, or nothing more can be done now; False: call again."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            await self._check.confirm_step()
            async with self._engine.connect() as connection:
                state = await erasures.state_of(connection, one.id)
            if state in {"cancelling", "cancelled"}:
                await self._ledger.write("erasure_cancelled", {"erasure": str(one.id)}, actor=ACTOR)
                return True
            place = self._places.setdefault(one.id, _Place())
            await self._gather(one, place)
            if not await self._step(one, place):
                del self._places[one.id]
                await self._finish(one, place.error)
                return True
        return False

    async def _gather(self, one: Erasure, place: _Place) -> None:
        """Once in a process all names of what is not stored; later on what is new."""
        if place.gathered:
            return
        async with self._engine.begin() as connection:
            # in the gate: numbers are given before they can be seen, and a lower one may come later
            await marks.gate_exclusive(connection)
            seen = await named.newest(connection)
        async with self._engine.begin() as connection:
            await orphans.exists(connection, _report(one))
            await named.gather(connection, _report(one), self._blobs.buckets)
        place.seen.update(seen)
        place.gathered = True

    async def _step(self, one: Erasure, place: _Place) -> bool:
        """Erase the objects behind the place, at most a batch; False: there are none."""
        async with self._engine.connect() as connection:
            keys = await objects.page(connection, one.id, after=place.after, limit=self._batch)
        if not keys:
            return await self._take(one, place)
        place.after = keys[-1]
        with stage(STEP_SECONDS, "claim"):
            claimed = await self._claim(one, place, keys)
        failpoint("orphans.claim.after")
        if claimed:
            found = await self._young_apart(one, claimed)
            await self._erase(one, place, found)
        return True

    async def _take(self, one: Erasure, place: _Place) -> bool:
        """Write the next orphans of the report to the ledger; False: it has no more."""
        report = _report(one)
        async with self._engine.begin() as connection:
            if not await erasures.advance(connection, one.id, "marking"):
                return True
            keys = await orphans.following(connection, report, after=place.after)
            if not keys:
                return False
            judged = await orphans.judge(connection, report, keys)
            await self._leave(connection, one, keys, judged)
        failpoint("orphans.batch.before")
        if not judged.doomed:
            place.after = keys[-1]
            return True
        body = objects.batch(one.id, judged.doomed)
        if not await self._ledger.write("orphans_batch", body, actor=ACTOR):
            place.after = keys[-1]  # another erasure has named them all
        failpoint("orphans.batch.after")
        return True

    async def _claim(self, one: Erasure, place: _Place, keys: Sequence[str]) -> list[str]:
        """Those that may be deleted now: a hold, or an event, that came before the gate is given
        back keeps its own. From the commit on nothing is cancelled."""
        report, gone = _report(one), await self._gone(keys)
        left = [key for key in keys if key not in gone]
        async with self._engine.begin() as connection:
            await marks.gate_exclusive(connection)
            await named.gather(connection, report, self._blobs.buckets, place.seen)
            judged = await orphans.judge(connection, report, left)
            await self._leave(connection, one, left, judged)
            doomed = sorted([*judged.doomed, *gone])
            if not doomed or not await erasures.begin_deleting(connection, one.id):
                return []
            await objects.claim(connection, doomed)
        return doomed

    async def _gone(self, keys: Sequence[str]) -> set[str]:
        """Those that a claim before a crash has deleted already: the certificate is to tell so,
        whatever has come since that would keep them."""
        async with self._engine.connect() as connection:
            claimed = await objects.claimed(connection, keys)
        found = await asyncio.to_thread(self._looked_at, sorted(claimed))
        return {key for key, (_, at) in found.items() if at is None}

    async def _leave(
        self,
        connection: AsyncConnection,
        one: Erasure,
        keys: Collection[str],
        judged: orphans.Judged,
    ) -> None:
        """What stays is no longer named, and the report says why."""
        kept = set(keys) - set(judged.doomed) - set(judged.held)
        await objects.remove(connection, kept)
        await objects.keep(connection, one.id, judged.held)
        await orphans.tell(connection, _report(one), kept, "kept")
        await orphans.tell(connection, _report(one), judged.held, "held")

    async def _young_apart(self, one: Erasure, keys: Sequence[str]) -> Mapping[str, int]:
        """The sizes of those that are as old as the report judged; what was written again since
        stays, and so does what a spool may have an event of by now."""
        before = datetime.fromisoformat((one.asked or {})["before"])
        async with self._engine.connect() as connection:
            waiting = await awaited.waiting(connection, now=before)
        if waiting and (since := min(at for at, _ in waiting)) != awaited.NEVER:
            before = min(before, since - self._grace)
        elif waiting:
            before = awaited.NEVER
        found = await asyncio.to_thread(self._looked_at, keys)
        old = {
            key: size
            for key, (size, at) in found.items()
            if at is None or judging.older(at, before)
        }
        young = set(keys) - set(old)
        if young:
            async with self._engine.begin() as connection:
                await objects.remove(connection, young)
                await orphans.tell(connection, _report(one), young, "kept")
        return old

    def _looked_at(self, keys: Sequence[str]) -> dict[str, tuple[int, datetime | None]]:
        """Size and age of each; no age: it is gone, but for older versions maybe."""
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="orphans") as executor:
            return dict(zip(keys, executor.map(self._look_at, keys), strict=True))

    def _look_at(self, key: str) -> tuple[int, datetime | None]:
        place = parse_stored(key)
        found = self._blobs.page(place.bucket, place.key, after="", limit=1)
        if found and found[0].place == place:
            return found[0].size, found[0].modified_at
        return 0, None

    async def _erase(self, one: Erasure, place: _Place, sizes: Mapping[str, int]) -> None:
        keys = [parse_stored(key) for key in sorted(sizes)]
        if not keys:
            return
        failpoint("retention.object_delete.before")
        with stage(STEP_SECONDS, "delete"):
            deleted = await asyncio.to_thread(self._blobs.delete_objects, keys)
        failpoint("retention.object_delete.after")
        async with self._engine.begin() as connection:
            await erasures.advance(connection, one.id, "verifying")
        with stage(STEP_SECONDS, "verify"):
            left = await asyncio.to_thread(self._blobs.still_there, keys)
        faults = merge_faults(deleted, keys, left)
        place.error = place.error or format_failures(faults)
        stays = {fault.key for fault in faults}
        gone = [key for key in keys if key not in stays]
        failpoint("orphans.forget.before")
        with stage(STEP_SECONDS, "forget"):
            await self._forget(one, gone, deleted, sizes)
            await self._note(one, faults, gone)
        failpoint("orphans.forget.after")

    async def _forget(
        self, one: Erasure, gone: Sequence[StorageKey], deleted: Deleted, sizes: Mapping[str, int]
    ) -> None:
        if not gone:
            return
        keys = [str(key) for key in gone]
        size = deleted.bytes or sum(sizes[key] for key in keys)
        async with self._engine.begin() as connection:
            await objects.remove(connection, keys)
            await orphans.tell(connection, _report(one), keys, "erased")
            await erasures.count(
                connection, one.id, objects=len(keys), versions=deleted.versions, bytes=size
            )
            if self._certifier is not None:
                key = await self._certifier.key_of(connection, one.id)
                scope = one.scope
                await erased.tell(connection, key, one.id, scope=scope, uids=(), objects=gone)
        OBJECTS_DELETED.inc(len(keys))
        ERASED.labels(one.scope).inc(len(keys))

    async def _note(
        self, one: Erasure, faults: Sequence[DeleteFault], gone: Sequence[StorageKey]
    ) -> None:
        """Name what stands in the way, and until when."""
        if not faults and one.state != "failed":
            return
        ends = await asyncio.to_thread(self._ends, faults[:_ASKED])
        found = [(str(f.key), f.code, f.message, ends.get(f.key)) for f in faults]
        async with self._engine.begin() as connection:
            await obstacles.note(connection, one.id, found, [str(key) for key in gone])

    def _ends(self, faults: Sequence[DeleteFault]) -> dict[StorageKey, datetime | None]:
        return {fault.key: self._blobs.locked_until(fault.key) for fault in faults if fault.held}

    async def _finish(self, one: Erasure, error: str | None) -> None:
        async with self._engine.begin() as connection:
            certifying = self._certifier is not None
            state = await objects.finish(connection, one, error=error, certifying=certifying)
            if state != "failed":
                await named.forget(connection, _report(one))
            one = await erasures.find(connection, one.id) or one
        if state == "certifying" and self._certifier is not None:
            state = await self._certifier.certify(one, state)
        elif state == "deleted":
            await without_key(self._engine, one)
        _log.info("erasure", action="erasure", id=str(one.id), state=state, error=error)


def _report(one: Erasure) -> UUID:
    return UUID((one.asked or {})["report"])
