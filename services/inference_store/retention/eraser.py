"""Erases what is marked, batch by batch. The order makes every crash harmless:

1. claim    what no legal hold keeps, and which objects nobody else points to; in the gate, in
            one short transaction
2. delete   the objects, in every version (scope input: also the request in metadata and sidecar)
3. verify   by listing again that they are gone
4. forget   rows, marks, tombstones and counts, and tell the certificate, in one transaction

After the last batch the key registry's examples go, and the erasure ends with its certificate.

A crash before 4 leaves the marks, so no reader shows the inferences, and the next run begins at
1 again: deleting what is gone is no fault. An object that is still there (a lock of S3, a right
that is missing) keeps its mark, so that its row, which names it, is not lost.
"""

import asyncio
import time
from collections.abc import Iterable, Sequence, Set
from datetime import datetime
from math import inf
from uuid import UUID

import structlog
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.store import traces
from inference_store.store.blobs import Blobs, Deleted, DeleteFault
from inference_store.store.certificates.batches import tell_batch
from inference_store.store.errors import HoldUnreadable
from inference_store.store.events import StorageKey, parse_stored
from inference_store.store.failpoints import failpoint
from inference_store.store.holds import kept
from inference_store.store.metrics import (
    ERASED,
    OBJECTS_DELETED,
    STEP_SECONDS,
)
from inference_store.store.retention import claims, erasures, marks, rows
from inference_store.store.retention.erasures import Erasure, State, obstacles
from inference_store.store.retention.failures import failed, reason_of
from inference_store.store.retention.marks import Mark, Place
from inference_store.store.stages import stage

from .asides import Asides
from .certifier import Certifier, without_key
from .pace import Pace
from .requests import forget_requests

_log = structlog.get_logger()
# Of how many objects of a batch it is asked when their locks end.
_ASKED = 100


class Eraser:
    """Works erasures off. Raises BlobsAway and the database's trouble: try again later."""

    def __init__(
        self,
        engine: AsyncEngine,
        blobs: Blobs,
        pace: Pace,
        *,
        batch: int,
        certifier: Certifier | None = None,
    ) -> None:
        self._engine = engine
        self._blobs = blobs
        self._pace = pace
        self._batch = batch
        # whether the last step left something because of a hold
        self.spared = False
        self._asides = Asides(engine, blobs, pace)
        # where those that were given no more time go on, and what went wrong so far
        self._places: dict[UUID, tuple[Place | None, str | None]] = {}
        self._certifier = certifier

    async def finish(self, one: Erasure, *, seconds: float = inf) -> State | None:
        """Erase all that is marked, whoever marked it, and say how it ended.

        None: not in so many seconds; the next call goes on.
        """
        attributes = {"inference_store.erasure.scope": one.scope}
        with traces.ended(traces.begin("erasure", attributes=attributes)) as span:
            state = await self._finish(one, seconds)
            if state == "failed":
                traces.failed(span, "LeftOver")
        return state

    async def _finish(self, one: Erasure, seconds: float) -> State | None:
        after, error = self._places.pop(one.id, (None, None))
        until = time.monotonic() + seconds
        while True:
            after, fault = await self.step(one, after)
            error = error or fault
            if after is None:
                break
            if time.monotonic() > until:
                self._places[one.id] = after, error
                return None
        if one.scope == "inference" and one.cause in {"policy", "request"}:
            await self._asides.take_erased(one)
        async with self._engine.begin() as connection:
            certifying = self._certifier is not None
            state = await erasures.finish(connection, one, error=error, certifying=certifying)
            one = await erasures.find(connection, one.id) or one
        if state in {"certifying", "partly_held"} and self._certifier is not None:
            state = await self._certifier.certify(one, state)
        elif state == "deleted":
            await without_key(self._engine, one)
        _log.info("erasure", action="erasure", id=str(one.id), state=state, error=error)
        return state

    async def step(
        self, one: Erasure, after: Place | None, *, whole_span: bool = False
    ) -> tuple[Place | None, str | None]:
        """Erase the marks behind `after`, at most a batch: the last one and what went wrong.

        (None, None) when there are none, or it was cancelled; (None, why) where nothing may go.
        """
        await self._pace.next_step()
        self.spared = False
        try:
            with stage(STEP_SECONDS, "claim"):
                page, doomed, last = await self._claim(one, after)
        except HoldUnreadable as error:
            failed("hold_unreadable")
            return None, error.detail
        if not page:
            return last, None
        deleted, faults = await self._delete(one, page, doomed)
        left = {fault.key for fault in faults}
        done = [mark for mark in page if left.isdisjoint(_objects(mark))]
        objects = len(doomed) - len(left.intersection(map(parse_stored, doomed)))
        # those that follow one that stays are remembered one by one
        whole_span = whole_span and len(done) == len(page) and not self.spared
        with stage(STEP_SECONDS, "forget"):
            await self._forget(one, done, doomed, deleted, objects=objects, whole_span=whole_span)
        await self._note(one, faults, done)
        return last, sentence(faults)

    async def _claim(
        self, one: Erasure, after: Place | None
    ) -> tuple[Sequence[Mark], frozenset[str], Place | None]:
        """The next marks, the objects that may go, and the last mark that was looked at.

        A hold that is placed before the gate is given back keeps its own; one that comes later
        lists what is claimed here. From the commit on nothing is cancelled.
        """
        async with self._engine.begin() as connection:
            page = await marks.page(connection, one.id, after=after, limit=self._batch)
            if not page or not await erasures.advance(connection, one.id, "marking"):
                return (), frozenset(), None
            await marks.gate_exclusive(connection)
            in_ledger = one.cause in {"policy", "request"}
            since = one.requested_at
            left = await kept.spare(connection, page, since=since, in_ledger=in_ledger)
            self.spared = len(left) < len(page)
            last = page[-1].place
            if not left:
                return (), frozenset(), last
            await erasures.begin_deleting(connection, one.id)
            await claims.mark_claimed(connection, one.id, left)
            return left, await claims.claim(connection, left), last

    async def _delete(
        self, one: Erasure, page: Sequence[Mark], doomed: Iterable[str]
    ) -> tuple[Deleted, list[DeleteFault]]:
        """Delete objects and see them gone; what is left, with the reasons."""
        keys = [parse_stored(key) for key in sorted(doomed)]
        if not keys and one.scope != "input":
            return Deleted(), []
        failpoint("retention.object_delete.before")
        with stage(STEP_SECONDS, "delete"):
            deleted = await asyncio.to_thread(self._blobs.delete_objects, keys)
            if one.scope == "input":
                deleted += await asyncio.to_thread(forget_requests, self._blobs, page)
        failpoint("retention.object_delete.after")
        async with self._engine.begin() as connection:
            await erasures.advance(connection, one.id, "verifying")
        failpoint("retention.verify.before")
        with stage(STEP_SECONDS, "verify"):
            left = await asyncio.to_thread(self._blobs.still_there, keys)
        failpoint("retention.verify.after")
        return deleted, proved(deleted, keys, left)

    async def _forget(
        self,
        one: Erasure,
        done: Sequence[Mark],
        doomed: Set[str],
        deleted: Deleted,
        *,
        objects: int,
        whole_span: bool,
    ) -> None:
        if not done:
            return
        async with self._engine.begin() as connection:
            await erasures.advance(connection, one.id, "deleting_rows")
        failpoint("retention.row_delete.before")
        async with self._engine.begin() as connection:
            erased = await rows.forget(
                connection,
                one,
                done,
                objects=objects,
                versions=deleted.versions,
                bytes=deleted.bytes,
                whole_span=whole_span,
            )
            if self._certifier is not None:
                key = self._certifier.key
                await tell_batch(connection, key, one, done, doomed, whole_span=whole_span)
        failpoint("retention.row_delete.after")
        ERASED.labels(one.scope).inc(erased)
        OBJECTS_DELETED.inc(objects)

    async def _note(
        self, one: Erasure, faults: Sequence[DeleteFault], done: Sequence[Mark]
    ) -> None:
        """Name what stands in the way, and until when; what does no longer is forgotten."""
        if not faults and one.state != "failed":
            return
        ends = await asyncio.to_thread(self._ends, faults[:_ASKED])
        found = [(str(f.key), f.code, f.message, ends.get(f.key)) for f in faults]
        gone = [str(key) for mark in done for key in _objects(mark)]
        async with self._engine.begin() as connection:
            await obstacles.note(connection, one.id, found, gone)

    def _ends(self, faults: Sequence[DeleteFault]) -> dict[StorageKey, datetime | None]:
        return {fault.key: self._blobs.locked_until(fault.key) for fault in faults if fault.held}


def _objects(mark: Mark) -> list[StorageKey]:
    """Every object of a mark: one that could not be dealt with keeps the mark."""
    keys: set[str | None] = set(mark.doomed)
    if mark.scope == "input":
        keys |= {mark.metadata, mark.sidecar}
    return [parse_stored(key) for key in keys if key is not None]


def proved(
    faults: Iterable[DeleteFault], keys: Sequence[StorageKey], left: Iterable[StorageKey]
) -> list[DeleteFault]:
    """What is listed still, whatever the answer to the delete said; and what was not rewritten."""
    said = {fault.key: fault for fault in faults}
    deleted = set(keys)
    rewriting = [fault for key, fault in said.items() if key not in deleted]
    unseen = "deleted without a fault, and listed still"
    return rewriting + [said.get(key) or DeleteFault(key, "StillThere", unseen) for key in left]


def sentence(faults: Sequence[DeleteFault]) -> str | None:
    if not faults:
        return None
    for fault in faults:
        failed(reason_of(fault.code, fault.message))
    first = faults[0]
    others = f", and {len(faults) - 1} more" if len(faults) > 1 else ""
    return f"{first.key}{others}: {first.code} {first.message}".strip()
