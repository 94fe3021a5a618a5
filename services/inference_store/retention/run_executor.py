"""One run: what the policies no longer keep is marked and erased, the oldest first.

What applies to a model is asked again as each batch is written down, in the ledger's turn, where
policies are written down too: one that is set, changed or removed meanwhile wins from then on. The
run goes on by the new one, and what it has passed already is the next run's.
"""

import asyncio
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inference_store.erasure import erasures, failures, runs
from inference_store.erasure.erasures import Erasure, marking
from inference_store.erasure.ledger import Ledger, Saying
from inference_store.erasure.mark.marks import Place
from inference_store.erasure.policies import Chain, Scope, frontiers
from inference_store.erasure.policies.frontiers import Frontier
from inference_store.erasure.runs import RetentionRun
from inference_store.erasure.select import limits, selection, spans
from inference_store.index.partitions import Span
from inference_store.inference.errors import HoldUnreadable
from inference_store.inference.events import received_at_of
from inference_store.platform.failpoints import failpoint
from inference_store.platform.metrics import STEP_SECONDS
from inference_store.platform.stages import stage
from inference_store.query.bounded import Deadline, OutOfTime

from .dropping import drop, reopen
from .eraser import Eraser
from .marker import ACTOR
from .work import LIMITS, WHOLE_SPAN, Changed, Plan, Work

_LIMIT_SECONDS = 240.0
_SECOND = timedelta(seconds=1)


class RunExecutor:
    """Carries one run out. Raises BlobsAway and the database's trouble: begin again later."""

    def __init__(
        self,
        engine: AsyncEngine,
        ledger: Ledger,
        eraser: Eraser,
        run: RetentionRun,
        *,
        batch: int,
        now: datetime,
    ) -> None:
        self._engine = engine
        self._ledger = ledger
        self._eraser = eraser
        self._run = run
        self._batch = batch
        self._plan = Plan(now)
        self._holds = 0
        self._begun: dict[Frontier, datetime] = {}
        self._erasures: dict[tuple[int, Scope], Erasure] = {}
        # only where something was left; by erasure, which the rules of a model share
        self._after: dict[tuple[int, Scope], Place | None] = {}
        # whether a hold keeps something in the span that is being emptied
        self._spared = False
        # whether it was not found in time what is beyond a limit
        self._out_of_time = False

    async def carry_out(self) -> str | None:
        """Erase all that has expired; what could not be erased, in one sentence."""
        found = await self._prepare()
        unreadable = None
        try:
            for span, is_closed in found:
                await self._span(span, is_closed=is_closed)
            await self._remember()
            await self._beyond_limits()
        except HoldUnreadable as error:
            failures.failed("hold_unreadable")
            unreadable = error.detail
        states = [await self._eraser.finish(one) for one in self._erasures.values()]
        if unreadable is not None:
            return unreadable
        if self._out_of_time:
            return "what is beyond the limits of a policy was not found in time"
        failed = states.count("failed")
        return f"{failed} erasures have something left over; they say what" if failed else None

    async def _prepare(self) -> list[tuple[Span, bool]]:
        """Read the policies; the spans that have something to look at."""
        plan = self._plan
        async with self._engine.connect() as connection:
            self._holds = await frontiers.changes_of_holds(connection)
            await plan.prepare(connection, await runs.models_of(connection, self._run))
            if self._run.cause == "schedule":
                self._begun = await frontiers.load(connection, plan.chains, plan.now)
            return await spans.ending(connection, until=plan.latest())

    async def _remember(self) -> None:
        """All that had expired by now is marked: the next run begins there."""
        plan, begun, holds = self._plan, self._begun, self._holds
        failpoint("retention.frontier.before")
        async with self._engine.begin() as connection:
            about = plan.chains, plan.swept(), plan.now
            await frontiers.save(connection, *about, begun=begun, holds=holds)
        failpoint("retention.frontier.after")

    async def _beyond_limits(self) -> None:
        """What is more than a policy keeps goes once all that had expired is marked."""
        for model in list(self._plan.work):
            chain = self._plan.chains[model]
            below = await self._limit_of(model, chain)
            if below is None:
                continue
            until = received_at_of(below) + _SECOND
            work = Work(model, chain, "inference", until, LIMITS, below=below)
            async with self._engine.connect() as connection:
                found = await spans.ending(connection, until=until)
            for span, _ in found:
                await self._erase(work, span)

    async def _limit_of(self, model: int, chain: Chain) -> UUID | None:
        """What is older than this is more than its policy keeps; None: nothing, or nobody knows."""
        try:
            async with self._engine.begin() as connection:
                deadline = Deadline.after(_LIMIT_SECONDS)
                return await limits.beyond(
                    connection, model, chain, now=self._plan.now, deadline=deadline
                )
        except OutOfTime:
            failures.failed("limit_out_of_time")
            self._out_of_time = True
            return None

    async def _span(self, span: Span, *, is_closed: bool) -> None:
        if is_closed and await self._is_others(span):
            return
        failpoint("retention.span_close.before")
        goes_whole = await self._close(span, is_closed=is_closed)
        failpoint("retention.span_close.after")
        if goes_whole:
            await self._drop(span)
            return
        async with self._engine.connect() as connection:
            models = await spans.models_in(connection, span)
        for model in models:
            for work in self._plan.work.get(model, ()):
                await self._erase(work, span)

    async def _is_others(self, span: Span) -> bool:
        """Whether a closed span has something of models that the run is not of: a run of all has
        closed it, and the next one goes on with it."""
        async with self._engine.connect() as connection:
            models = await spans.models_in(connection, span)
        return not all(map(self._plan.is_of, models))

    async def _close(self, span: Span, *, is_closed: bool) -> bool:
        """Whether the whole span goes, and no writer may write into it from now on."""
        ends = self._plan.ends()
        if not is_closed and not any(end is not None and end >= span.hi for end in ends.values()):
            return False
        async with self._engine.connect() as connection:
            held = await spans.has_held(connection, span)
        if held and not is_closed:
            return False
        async with self._engine.begin() as connection:
            ends = await self._plan.ends_now(connection)
            if not is_closed:
                return await spans.close(connection, span, ends)
            if not held and await spans.has_ended(connection, span, ends):
                return True
        await reopen(self._engine, span, self._eraser.check)
        return False

    async def _drop(self, span: Span) -> None:
        """Objects first, then the partitions; a partition whose objects are not all gone stays.

        One with something that a hold keeps, or a policy by now, is open again at once: queries
        are to show it.
        """
        async with self._engine.connect() as connection:
            models = await spans.models_in(connection, span)
        for model in models:
            if (chain := self._plan.chains.get(model)) is not None:
                work = Work(model, chain, "inference", span.hi, WHOLE_SPAN)
                await self._erase(work, span, whole_span=True)
        if self._spared:
            self._spared = False
            await reopen(self._engine, span, self._eraser.check)
            return
        failpoint("retention.partition_drop.before")
        await drop(self._engine, span, self._run.id, self._eraser.check)
        failpoint("retention.partition_drop.after")

    async def _erase(self, work: Work, span: Span, *, whole_span: bool = False) -> None:
        """Mark and erase, batch by batch, what was received in the span before the cutoff: the next
        batch is marked while one is erased."""
        begun = self._begun.get(work.place, span.lo) if work.looks_again else span.lo
        lo, hi = max(begun, span.lo), min(work.cutoff, span.hi)
        last: UUID | None = None
        step = asyncio.create_task(_skip_step(whole_span))
        try:
            while (
                lo < hi
                and (last := await self._mark(work, lo, hi, last, whole_span=whole_span))
                is not None
            ):
                whole_span = await step
                step = asyncio.create_task(self._step(work, whole_span=whole_span))
        finally:
            # what is under way ends before anything else begins, also after trouble
            await asyncio.gather(step, return_exceptions=True)
        await step

    async def _step(self, work: Work, *, whole_span: bool) -> bool:
        """Erase a batch; whether what comes after it is remembered as a list."""
        one = self._erasures[work.model, work.scope]
        after = self._after.get((work.model, work.scope))
        reached, fault = await self._eraser.step(one, after, whole_span=whole_span)
        if fault is not None or after is not None:
            # Marks have no order of time: what is marked before the place where something is
            # left waits for the end of the run, which looks at all of them again.
            self._after[work.model, work.scope] = reached or after
        if whole_span and self._eraser.spared:
            self._spared = True
        # what follows something that stays is remembered one by one
        return whole_span and fault is None and not self._eraser.spared

    async def _mark(
        self, work: Work, lo: datetime, hi: datetime, after: UUID | None, *, whole_span: bool
    ) -> UUID | None:
        """Mark one batch, and answer its last: from the commit on no query shows them."""
        failpoint("retention.mark.before")
        model, scope = work.model, work.scope
        one = self._erasures.get((model, scope))
        id = uuid4() if one is None else one.id
        begun = erasures.Begun(id, "policy", scope, self._run.id, decided_by=work.decided_by)
        with stage(STEP_SECONDS, "mark"):
            # the ledger has it before it takes effect
            async with self._engine.connect() as connection:
                found = await selection.expired(
                    connection,
                    model=model,
                    scope=scope,
                    lo=lo,
                    hi=hi,
                    limit=self._batch,
                    by=work.by,
                    after=after,
                    below=work.below,
                    whole_span=whole_span,
                )
                if not found:
                    return None
                batch = await marking.entry(connection, begun, model, found)
            try:
                said = self._if_applies(work, batch)
                await self._ledger.write("erasure_batch", said, actor=ACTOR)
            except Changed:
                await self._follow(model)
                self._spared = self._spared or whole_span
                return None
        if one is None:
            self._erasures[model, scope] = await self._found(begun.id)
        failpoint("retention.mark.after")
        last: UUID = found[-1].uid
        return last

    def _if_applies(self, work: Work, batch: dict[str, Any]) -> Saying:
        async def said(connection: AsyncConnection) -> dict[str, Any]:
            await self._plan.confirm(connection, work)
            return batch

        return said

    async def _follow(self, model: int) -> None:
        async with self._engine.connect() as connection:
            await self._plan.follow(connection, model)

    async def _found(self, id: UUID) -> Erasure:
        async with self._engine.connect() as connection:
            found = await erasures.find(connection, id)
        assert found is not None, "its first batch made it"
        return found


async def _skip_step(whole_span: bool) -> bool:
    """Before the first step."""
    return whole_span
