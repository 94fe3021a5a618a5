"""One run: marks and erases inferences that the policies no longer keep, the oldest first.

The policy of a model is read again as each batch is written, in the ledger's turn, in which
policies are written too: a policy that is set, changed or removed meanwhile applies from then on.
The run continues with the new one; inferences that it has passed are left to the next run.
"""

import asyncio
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.erasure import policies, rows, selection
from inference_store.erasure.batches import describe_entry
from inference_store.erasure.pending_deletions import Position
from inference_store.erasure.policies import (
    EffectivePolicy,
    ErasureScope,
    PolicyOwner,
    watermarks,
)
from inference_store.erasure.policies.watermarks import WatermarkKey
from inference_store.erasure.progress import Erasure, NewErasure, find_erasure
from inference_store.erasure.runs import RetentionRun, count_failure
from inference_store.erasure.selection import LIMITS, WHOLE_SPAN, Work, list_work
from inference_store.index.partitions import TimePartition
from inference_store.inference.errors import HoldUnreadable
from inference_store.inference.events import received_at_of
from inference_store.platform.failpoints import failpoint
from inference_store.platform.metrics import STEP_SECONDS
from inference_store.platform.traces import stage
from inference_store.query.deadline import Deadline, OutOfTime

from . import eraser
from .leader import ACTOR, Leader
from .residual import drop_span, reopen_span


class PolicyChanged(Exception):
    """Another policy applies to the model now."""


_LIMIT_SECONDS = 240.0
_SECOND = timedelta(seconds=1)


class RunExecutor:
    """Carries one run out. Raises ObjectStoreUnavailable and errors of the database; it can then
    be begun again."""

    def __init__(self, leader: Leader, run: RetentionRun, *, now: datetime) -> None:
        self._leader = leader
        self._engine = leader.engine
        self._run = run
        self._now = now
        # None: all; the run deletes nothing of others
        self._models: set[int] | None = None
        # the policy that applies to each model, as last read, and the resulting work
        self._chains: dict[int, EffectivePolicy] = {}
        self._work: dict[int, list[Work]] = {}
        # models whose policies have changed since the run began
        self._changed: set[int] = set()
        self._begun: dict[WatermarkKey, datetime] = {}
        self._erasures: dict[tuple[int, ErasureScope], Erasure] = {}
        # only if something was left; by erasure, which the rules of a model share
        self._after: dict[tuple[int, ErasureScope], Position | None] = {}
        # whether a hold protects something in the span that is being emptied
        self._spared = False
        # whether the last step found any marks
        self._has_more = False
        # whether the search for inferences beyond a limit ran out of time
        self._out_of_time = False

    async def carry_out(self) -> str | None:
        """Erase everything that has expired; return the failures as one sentence, or None."""
        async with self._engine.connect() as connection:
            holds = await watermarks.count_hold_changes(connection)
            ending = await self._prepare(connection)
        unreadable = None
        try:
            for span, is_closed in ending:
                await self._work_on_span(span, is_closed=is_closed)
            await self._save_watermarks(holds)
            await self._erase_beyond_limits()
        except HoldUnreadable as error:
            count_failure("hold_unreadable")
            unreadable = error.detail
        states = [await eraser.finish(self._leader, erasure) for erasure in self._erasures.values()]
        if unreadable is not None:
            return unreadable
        if self._out_of_time:
            return "what is beyond the limits of a policy was not found in time"
        failed = states.count("failed")
        return f"{failed} erasures have something left over; they say what" if failed else None

    async def _prepare(self, connection: AsyncConnection) -> list[tuple[TimePartition, bool]]:
        run, now = self._run, self._now
        self._models = None if run.model is None else {run.model}
        if run.project_id is not None:
            project = PolicyOwner("project", run.project_id)
            self._models = set(await policies.list_models(connection, project))
        self._chains = await policies.find_effective_policies(connection)
        for model in self._chains:
            await self._plan(connection, model)
        if run.cause == "schedule":
            self._begun = await watermarks.load_watermarks(connection, self._chains, now)
        ends = [self._chains[model].find_latest(now) for model in self._work]
        until = max((end for end in ends if end is not None), default=None)
        return await rows.list_ending(connection, until=until)

    async def _plan(self, connection: AsyncConnection, model: int) -> None:
        chain = self._chains.get(model)
        if chain is None or not self._covers(model):
            self._work.pop(model, None)
            return
        rules = await selection.compile_rules(connection, chain, self._now)
        self._work[model] = list(list_work(model, chain, rules))

    def _covers(self, model: int) -> bool:
        return self._models is None or model in self._models

    async def _save_watermarks(self, holds: int) -> None:
        """Store the watermarks: everything before them is marked, and the next run begins there.
        Without those of models whose policies have changed meanwhile."""
        reached = {
            work.watermark_key: work.chain.find_settled(work.cutoff, work.scope, self._now)
            for model, works in self._work.items()
            for work in works
            if work.is_rechecked and model not in self._changed
        }
        failpoint("retention.frontier.before")
        async with self._engine.begin() as connection:
            about = self._chains, reached, self._now
            await watermarks.save_watermarks(connection, *about, begun=self._begun, holds=holds)
        failpoint("retention.frontier.after")

    async def _erase_beyond_limits(self) -> None:
        """Erase inferences beyond the limits of a policy, after all expired ones are marked."""
        for model in list(self._work):
            chain = self._chains[model]
            below = await self._find_limit(model, chain)
            if below is None:
                continue
            until = received_at_of(below) + _SECOND
            work = Work(model, chain, "inference", until, LIMITS, below=below)
            async with self._engine.connect() as connection:
                ending = await rows.list_ending(connection, until=until)
            for span, _ in ending:
                await self._erase(work, span)

    async def _find_limit(self, model: int, chain: EffectivePolicy) -> UUID | None:
        try:
            async with self._engine.begin() as connection:
                rules = await selection.compile_rules(connection, chain, self._now)
                deadline = Deadline.after(_LIMIT_SECONDS)
                return await selection.find_limit(connection, model, rules, deadline)
        except OutOfTime:
            count_failure("limit_out_of_time")
            self._out_of_time = True
            return None

    async def _work_on_span(self, span: TimePartition, *, is_closed: bool) -> None:
        if is_closed:
            async with self._engine.connect() as connection:
                models = await rows.list_models(connection, span)
            if not all(map(self._covers, models)):
                # a run of all models has closed it, and the next one continues with it
                return
        failpoint("retention.span_close.before")
        goes_whole = await self._close(span, is_closed=is_closed)
        failpoint("retention.span_close.after")
        if goes_whole:
            await self._drop(span)
            return
        async with self._engine.connect() as connection:
            models = await rows.list_models(connection, span)
        for model in models:
            for work in self._work.get(model, ()):
                await self._erase(work, span)

    async def _close(self, span: TimePartition, *, is_closed: bool) -> bool:
        ends = self._find_ends(self._chains)
        if not is_closed and not any(end is not None and end >= span.hi for end in ends.values()):
            return False
        async with self._engine.connect() as connection:
            held = await rows.has_held(connection, span)
        if held and not is_closed:
            return False
        async with self._engine.begin() as connection:
            ends = self._find_ends(await policies.find_effective_policies(connection))
            if not is_closed:
                return await rows.close_span(connection, span, ends)
            if not held and await rows.has_ended(connection, span, ends):
                return True
        await reopen_span(self._leader, span)
        return False

    def _find_ends(self, chains: Mapping[int, EffectivePolicy]) -> dict[int, datetime | None]:
        """Return the time before which everything of each model has expired, of those of the run
        whose policies are the same in these chains."""
        return {
            model: chain.find_end(self._now)
            for model, chain in chains.items()
            if self._covers(model) and chain == self._chains.get(model)
        }

    async def _drop(self, span: TimePartition) -> None:
        """Delete the objects, then the partitions; if objects are left, the partitions stay.

        A span with something that a hold or, by now, a policy keeps is opened again at once,
        because queries must show it.
        """
        async with self._engine.connect() as connection:
            models = await rows.list_models(connection, span)
        for model in models:
            if (chain := self._chains.get(model)) is not None:
                work = Work(model, chain, "inference", span.hi, WHOLE_SPAN)
                await self._erase(work, span, whole_span=True)
        if self._spared:
            self._spared = False
            await reopen_span(self._leader, span)
            return
        failpoint("retention.partition_drop.before")
        await drop_span(self._leader, span, self._run.id)
        failpoint("retention.partition_drop.after")

    async def _erase(self, work: Work, span: TimePartition, *, whole_span: bool = False) -> None:
        """Mark and erase, batch by batch, the inferences of the span received before the cutoff.

        The next batch is marked while one is erased.
        """
        begun = self._begun.get(work.watermark_key, span.lo) if work.is_rechecked else span.lo
        lo, hi = max(begun, span.lo), min(work.cutoff, span.hi)
        last: UUID | None = None
        step: asyncio.Task[bool] | None = None
        try:
            while lo < hi:
                last = await self._mark(work, lo, hi, last, whole_span=whole_span)
                if last is None:
                    break
                whole_span = await step if step else whole_span
                step = asyncio.create_task(self._step(work, whole_span=whole_span))
        finally:
            # wait for the step that has begun, also after an error
            if step:
                await asyncio.gather(step, return_exceptions=True)
        if step:
            whole_span = await step
            while whole_span and self._has_more:
                whole_span = await self._step(work, whole_span=whole_span, patient=False)

    async def _step(self, work: Work, *, whole_span: bool, patient: bool = True) -> bool:
        erasure = self._erasures[work.model, work.scope]
        after = self._after.get((work.model, work.scope))
        reached, fault, has_spared = await eraser.step(
            self._leader, erasure, after, whole_span=whole_span, patient=patient
        )
        self._has_more = reached is not None
        if fault is not None or after is not None:
            # Marks are not ordered by time: marks before a position at which something is left wait
            # for the end of the run, which checks all of them again.
            self._after[work.model, work.scope] = reached or after
        if whole_span and has_spared:
            self._spared = True
        # inferences after one that stays are recorded one by one
        return whole_span and fault is None and not has_spared

    async def _mark(
        self, work: Work, lo: datetime, hi: datetime, after: UUID | None, *, whole_span: bool
    ) -> UUID | None:
        """Mark one batch, and return its last uid: from the commit on no query shows them."""
        failpoint("retention.mark.before")
        model, scope = work.model, work.scope
        erasure = self._erasures.get((model, scope))
        id = uuid4() if erasure is None else erasure.id
        begun = NewErasure(id, "policy", scope, self._run.id, decided_by=work.decided_by)
        with stage(STEP_SECONDS, "mark"):
            # it is in the ledger before it takes effect
            async with self._engine.connect() as connection:
                limit = self._leader.settings.retention_batch_inferences
                selected = await selection.find_expired(
                    connection, work, lo, hi, after=after, limit=limit, whole_span=whole_span
                )
                if not selected:
                    return None
                batch = await describe_entry(connection, begun, model, selected)

            async def confirm(connection: AsyncConnection) -> dict[str, Any]:
                now = await policies.find_effective_policies(connection, {model})
                if now.get(model) != work.chain:
                    raise PolicyChanged
                return batch

            try:
                await self._leader.ledger.write("erasure_batch", confirm, actor=ACTOR)
            except PolicyChanged:
                # the run continues with the policy that applies now
                self._changed.add(model)
                self._chains.pop(model, None)
                async with self._engine.connect() as connection:
                    self._chains |= await policies.find_effective_policies(connection, {model})
                    await self._plan(connection, model)
                self._spared = self._spared or whole_span
                return None
        if erasure is None:
            async with self._engine.connect() as connection:
                erasure = await find_erasure(connection, id)
            assert erasure is not None, "its first batch created it"
            self._erasures[model, scope] = erasure
        failpoint("retention.mark.after")
        last: UUID = selected[-1].uid
        return last
