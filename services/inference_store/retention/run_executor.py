"""One run: marks and erases inferences that the policies no longer keep, the oldest first.

The policy of a model is read again as each batch is written, in the ledger's turn, in which
policies are written too: a policy that is set, changed or removed meanwhile applies from then on.
The run continues with the new one; inferences that it has passed are left to the next run.
"""

import asyncio
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.erasure import policies, rows, selection
from inference_store.erasure.batches import describe_entry
from inference_store.erasure.pending_deletions import Position
from inference_store.erasure.policies import (
    SCOPES,
    EffectivePolicy,
    ErasureScope,
    PolicyOwner,
    watermarks,
)
from inference_store.erasure.policies.watermarks import WatermarkKey
from inference_store.erasure.progress import Erasure, NewErasure, find_erasure
from inference_store.erasure.runs import RetentionRun, count_failure
from inference_store.erasure.selection import CompiledRules
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

WHOLE_SPAN, LIMITS = -1, -2


class PolicyChanged(Exception):
    """Another policy applies to the model now."""


@dataclass(frozen=True, slots=True)
class Work:
    """The inferences of a model that one rule lets expire: one scope, before the cutoff."""

    model: int
    chain: EffectivePolicy
    scope: ErasureScope
    cutoff: datetime
    rule: int
    by: tuple[CompiledRules, int] | None = None
    """None: all inferences."""
    below: UUID | None = None

    @property
    def watermark_key(self) -> WatermarkKey:
        """Identifies its watermark."""
        return self.model, self.rule, self.scope

    @property
    def decided_by(self) -> list[dict[str, Any]]:
        """The rules or limits that let it expire, as a certificate names them."""
        if self.rule == LIMITS:
            assert self.chain.limit is not None
            return [self.chain.limit.reference]
        rules = self.chain.rules
        deciding = rules if self.rule == WHOLE_SPAN else rules[self.rule : self.rule + 1]
        return [rule.reference for rule in deciding]

    @property
    def is_rechecked(self) -> bool:
        """Check whether the next run would check again what this one leaves."""
        return self.scope == "response" or self.by is not None


class Plan:
    """The policy that applies to each model, as last read, and the resulting work."""

    def __init__(self, now: datetime) -> None:
        self.now = now
        self._models: set[int] | None = None
        self.chains: dict[int, EffectivePolicy] = {}
        self.work: dict[int, list[Work]] = {}
        self.changed: set[int] = set()
        """Models whose policies have changed since the run began."""

    async def prepare(self, connection: AsyncConnection, models: set[int] | None) -> None:
        """Read the policies of these models, or of all."""
        self._models = models
        self.chains = await policies.find_effective_policies(connection)
        for model in self.chains:
            await self._plan(connection, model)

    async def follow(self, connection: AsyncConnection, model: int) -> None:
        """Continue with the policy that applies to a model now."""
        self.chains.pop(model, None)
        self.chains |= await policies.find_effective_policies(connection, {model})
        self.changed.add(model)
        await self._plan(connection, model)

    async def confirm(self, connection: AsyncConnection, work: Work) -> None:
        """Raise PolicyChanged if it no longer applies."""
        now = await policies.find_effective_policies(connection, {work.model})
        if now.get(work.model) != work.chain:
            raise PolicyChanged

    async def find_current_ends(self, connection: AsyncConnection) -> dict[int, datetime | None]:
        """Return the result of `find_ends` for the models whose policies have not changed."""
        now = await policies.find_effective_policies(connection)
        return self.find_ends(
            model for model, chain in now.items() if chain == self.chains.get(model)
        )

    def find_ends(self, models: Iterable[int] | None = None) -> dict[int, datetime | None]:
        """Return the time before which everything of each model has expired.

        Of these models, or of all, it returns only those of the run, which deletes nothing else.
        """
        some = self.chains if models is None else models
        return {
            model: self.chains[model].find_end(self.now) for model in some if self.covers(model)
        }

    def covers(self, model: int) -> bool:
        """Check whether the run covers this model."""
        return self._models is None or model in self._models

    def find_latest(self) -> datetime | None:
        """Return the time after which nothing has expired by age."""
        ends = [
            chain.find_latest(self.now)
            for model, chain in self.chains.items()
            if self.covers(model)
        ]
        return max((end for end in ends if end is not None), default=None)

    def find_watermarks(self) -> dict[WatermarkKey, datetime]:
        """Return the cutoffs that the run reaches, for models whose policies have not changed
        meanwhile."""
        return {
            work.watermark_key: work.chain.find_settled(work.cutoff, work.scope, self.now)
            for model, works in self.work.items()
            for work in works
            if work.is_rechecked and model not in self.changed
        }

    async def _plan(self, connection: AsyncConnection, model: int) -> None:
        chain = self.chains.get(model)
        if chain is None or not self.covers(model):
            self.work.pop(model, None)
            return
        rules = await selection.compile_rules(connection, chain, self.now)
        self.work[model] = list(list_work(model, chain, rules))


def list_work(model: int, chain: EffectivePolicy, rules: CompiledRules) -> Iterator[Work]:
    """Yield the work for whole inferences first: after that no part of them is left to delete."""
    for scope in SCOPES:
        for number in range(len(chain.rules)):
            cutoff = rules.find_cutoff(number, scope)
            if cutoff is not None:
                by = None if rules.is_unconditional(number) else (rules, number)
                yield Work(model, chain, scope, cutoff, number, by)


_LIMIT_SECONDS = 240.0
_SECOND = timedelta(seconds=1)


class RunExecutor:
    """Carries one run out. Raises ObjectStoreUnavailable and errors of the database; it can then
    be begun again."""

    def __init__(self, leader: Leader, run: RetentionRun, *, now: datetime) -> None:
        self._leader = leader
        self._engine = leader.engine
        self._run = run
        self._plan = Plan(now)
        self._holds = 0
        self._begun: dict[WatermarkKey, datetime] = {}
        self._erasures: dict[tuple[int, ErasureScope], Erasure] = {}
        # only if something was left; by erasure, which the rules of a model share
        self._after: dict[tuple[int, ErasureScope], Position | None] = {}
        # whether a hold protects something in the span that is being emptied
        self._spared = False
        # whether the search for inferences beyond a limit ran out of time
        self._out_of_time = False

    async def carry_out(self) -> str | None:
        """Erase everything that has expired; return the failures as one sentence, or None."""
        ending = await self._prepare()
        unreadable = None
        try:
            for span, is_closed in ending:
                await self._work_on_span(span, is_closed=is_closed)
            # Store the watermarks: everything before them is marked, and the next run begins
            # there.
            plan, begun, holds = self._plan, self._begun, self._holds
            failpoint("retention.frontier.before")
            async with self._engine.begin() as connection:
                about = plan.chains, plan.find_watermarks(), plan.now
                await watermarks.save_watermarks(connection, *about, begun=begun, holds=holds)
            failpoint("retention.frontier.after")
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

    async def _prepare(self) -> list[tuple[TimePartition, bool]]:
        plan, run = self._plan, self._run
        models = None if run.model is None else {run.model}
        async with self._engine.connect() as connection:
            if run.project_id is not None:
                project = PolicyOwner("project", run.project_id)
                models = set(await policies.list_models(connection, project))
            self._holds = await watermarks.count_hold_changes(connection)
            await plan.prepare(connection, models)
            if run.cause == "schedule":
                self._begun = await watermarks.load_watermarks(connection, plan.chains, plan.now)
            return await rows.list_ending(connection, until=plan.find_latest())

    async def _erase_beyond_limits(self) -> None:
        """Erase inferences beyond the limits of a policy, after all expired ones are marked."""
        for model in list(self._plan.work):
            chain = self._plan.chains[model]
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
                rules = await selection.compile_rules(connection, chain, self._plan.now)
                deadline = Deadline.after(_LIMIT_SECONDS)
                return await selection.find_limit(connection, model, rules, deadline)
        except OutOfTime:
            count_failure("limit_out_of_time")
            self._out_of_time = True
            return None

    async def _work_on_span(self, span: TimePartition, *, is_closed: bool) -> None:
        if is_closed and await self._has_others(span):
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
            for work in self._plan.work.get(model, ()):
                await self._erase(work, span)

    async def _has_others(self, span: TimePartition) -> bool:
        """Check whether a closed span has inferences of models that this run does not cover.

        A run of all models has closed it, and the next one continues with it.
        """
        async with self._engine.connect() as connection:
            models = await rows.list_models(connection, span)
        return not all(map(self._plan.covers, models))

    async def _close(self, span: TimePartition, *, is_closed: bool) -> bool:
        ends = self._plan.find_ends()
        if not is_closed and not any(end is not None and end >= span.hi for end in ends.values()):
            return False
        async with self._engine.connect() as connection:
            held = await rows.has_held(connection, span)
        if held and not is_closed:
            return False
        async with self._engine.begin() as connection:
            ends = await self._plan.find_current_ends(connection)
            if not is_closed:
                return await rows.close_span(connection, span, ends)
            if not held and await rows.has_ended(connection, span, ends):
                return True
        await reopen_span(self._leader, span)
        return False

    async def _drop(self, span: TimePartition) -> None:
        """Delete the objects, then the partitions; if objects are left, the partitions stay.

        A span with something that a hold or, by now, a policy keeps is opened again at once,
        because queries must show it.
        """
        async with self._engine.connect() as connection:
            models = await rows.list_models(connection, span)
        for model in models:
            if (chain := self._plan.chains.get(model)) is not None:
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
            # wait for the step that has begun, also after an error
            await asyncio.gather(step, return_exceptions=True)
        await step

    async def _step(self, work: Work, *, whole_span: bool) -> bool:
        erasure = self._erasures[work.model, work.scope]
        after = self._after.get((work.model, work.scope))
        reached, fault, has_spared = await eraser.step(
            self._leader, erasure, after, whole_span=whole_span
        )
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
                selected = await selection.find_expired(
                    connection,
                    model=model,
                    scope=scope,
                    lo=lo,
                    hi=hi,
                    limit=self._leader.settings.retention_batch_inferences,
                    by=work.by,
                    after=after,
                    below=work.below,
                    whole_span=whole_span,
                )
                if not selected:
                    return None
                batch = await describe_entry(connection, begun, model, selected)

            async def confirm(connection: AsyncConnection) -> dict[str, Any]:
                await self._plan.confirm(connection, work)
                return batch

            try:
                await self._leader.ledger.write("erasure_batch", confirm, actor=ACTOR)
            except PolicyChanged:
                async with self._engine.connect() as connection:
                    await self._plan.follow(connection, model)
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


async def _skip_step(whole_span: bool) -> bool:
    """Stand in for the step before the first one."""
    return whole_span
