"""Marks what an erasure asks for, batch by batch; takes the marks of a cancelled one away."""

import time
from math import inf
from typing import Final, Literal, TypeAlias
from uuid import UUID

import structlog
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.erasure import erasures
from inference_store.erasure.erasures import Erasure, marking
from inference_store.erasure.erasures.marking import Part
from inference_store.erasure.ledger import Ledger
from inference_store.inference.errors import StoreError, Unavailable
from inference_store.platform.failpoints import failpoint
from inference_store.platform.metrics import RETENTION_TROUBLE, STEP_SECONDS
from inference_store.platform.stages import stage
from inference_store.query.bounded import OutOfTime

from .leadership_check import LeadershipCheck
from .quarantine import QuarantineEraser
from .waiver import waive_held

Marked: TypeAlias = Literal["all", "not_yet", "over"]
ACTOR: Final = "retention"
_BATCH = 5_000
_log = structlog.get_logger()


class Marker:
    """Works off what is asked of erasures that are not marked yet. Raises the database's trouble:
    and Unavailable: try again later."""

    def __init__(
        self,
        engine: AsyncEngine,
        ledger: Ledger,
        quarantine: QuarantineEraser,
        check: LeadershipCheck,
        *,
        batch: int = _BATCH,
    ) -> None:
        self._engine = engine
        self._ledger = ledger
        self._quarantine = quarantine
        # those whose dead letters and parked events were looked through
        self._looked: set[UUID] = set()
        self._check = check
        self._batch = batch

    def look_again(self) -> None:
        """A hold has let go: what it kept of dead letters and parked events may go."""
        self._looked.clear()

    async def mark(self, one: Erasure, *, seconds: float = inf) -> Marked:
        """`all`: it may be erased; `not_yet`: call again; `over`: it was cancelled, its rest was
        given up, or its filter could not be answered, which is tried again as what failed is.
        """
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            await self._check.confirm_step()
            async with self._engine.connect() as connection:
                left = await marking.parts(connection, one)
                state = await erasures.state_of(connection, one.id)
            if state in {"cancelling", "cancelled"}:
                await self._unmark(one)
                return "over"
            if state == "giving_up":
                await self._waive(one)
                return "over"
            try:
                if not left:
                    await self._look_aside(one)
                    return "all"
                await self._batch_of(one, left[0])
            except Unavailable:
                raise  # the ledger: the service waits, and the erasure with it
            except (OutOfTime, StoreError) as error:
                await self._fail(one, error)
                return "over"
        return "not_yet"

    async def _batch_of(self, one: Erasure, part: Part) -> None:
        failpoint("retention.mark.before")
        with stage(STEP_SECONDS, "mark"):
            async with self._engine.begin() as connection:
                if not await erasures.advance(connection, one.id, "marking"):
                    return
                found = await marking.find(connection, one, part, limit=self._batch)
                batch = await marking.body(connection, one, part.model, found)
            await self._ledger.write("erasure_batch", batch, actor=ACTOR)
        failpoint("retention.mark.after")

    async def _look_aside(self, one: Erasure) -> None:
        """Once in a process, and when a hold has let go: what was taken is not found again."""
        if one.id not in self._looked:
            await self._quarantine.take_subject(one, self._ledger, actor=ACTOR)
            self._looked.add(one.id)

    async def _unmark(self, one: Erasure) -> None:
        removed = 1
        while removed:
            await self._check.confirm_step()
            async with self._engine.begin() as connection:
                removed = await erasures.unmark(connection, one.id, limit=self._batch)
        await self._ledger.write("erasure_cancelled", {"erasure": str(one.id)}, actor=ACTOR)
        _log.info("erasure", action="erasure", id=str(one.id), state="cancelled")

    async def _waive(self, one: Erasure) -> None:
        work = (self._engine, self._ledger, self._check)
        await waive_held(*work, one, batch=self._batch, actor=ACTOR)

    async def _fail(self, one: Erasure, error: Exception) -> None:
        RETENTION_TROUBLE.inc()
        said = str(error) or "the filter cannot be answered in two minutes: narrow it"
        async with self._engine.begin() as connection:
            await erasures.failed(connection, one.id, said)
        _log.warning("erasure", action="erasure", id=str(one.id), state="failed", error=said)
