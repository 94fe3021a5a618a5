"""One run: what the policies no longer keep is marked and erased, the oldest first."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.store.errors import HoldUnreadable
from inference_store.store.events import received_at_of
from inference_store.store.failpoints import failpoint
from inference_store.store.ledger import Ledger
from inference_store.store.partitions import Span
from inference_store.store.queries.bounded import Deadline, OutOfTime
from inference_store.store.retention import (
    erasures,
    failures,
    frontiers,
    limits,
    policies,
    selection,
    spans,
)
from inference_store.store.retention.erasures import Erasure, marking
from inference_store.store.retention.frontiers import Frontier
from inference_store.store.retention.marks import Place
from inference_store.store.retention.policies import Chain, Scope
from inference_store.store.retention.runs import Run
from inference_store.store.retention.selection import Decided

from .dropping import drop
from .eraser import Eraser
from .marker import ACTOR

_WHOLE_SPAN, _LIMITS = -1, -2
_LIMIT_SECONDS = 240.0
_SECOND = timedelta(seconds=1)
_SCOPES: tuple[Scope, ...] = ("inference", "response", "input")


@dataclass(frozen=True, slots=True)
class _Work:
    """What one rule of a chain lets expire of a model: one part, before the cutoff."""

    model: int
    scope: Scope
    cutoff: datetime
    rule: int
    by: tuple[Decided, int] | None
    """None: of everything."""
    below: UUID | None = None

    @property
    def place(self) -> Frontier:
        return self.model, self.rule, self.scope

    def decided_by(self, chain: Chain) -> list[dict[str, Any]]:
        """Which of a chain's rules or limits let it expire, as a certificate names them."""
        if self.rule == _LIMITS:
            return [each.said for each in chain.limits]
        found = chain.rules if self.rule == _WHOLE_SPAN else chain.rules[self.rule : self.rule + 1]
        return [each.said for each in found]

    @property
    def looks_again(self) -> bool:
        """Whether what it leaves would be looked at in the next run too."""
        return self.scope == "response" or self.by is not None


class Sweep:
    """Carries one run out. Raises BlobsAway and the database's trouble: begin again later."""

    def __init__(
        self,
        engine: AsyncEngine,
        ledger: Ledger,
        eraser: Eraser,
        run: Run,
        *,
        batch: int,
        now: datetime,
    ) -> None:
        self._engine = engine
        self._ledger = ledger
        self._eraser = eraser
        self._run = run
        self._batch = batch
        self._now = now
        self._chains: dict[int, Chain] = {}
        self._work: dict[int, list[_Work]] = {}
        self._begun: dict[Frontier, datetime] = {}
        self._erasures: dict[tuple[int, Scope], Erasure] = {}
        # only where something was left
        self._after: dict[Frontier, Place | None] = {}
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
        """Read the policies once for the whole run; the spans that have something to look at."""
        async with self._engine.connect() as connection:
            self._chains = await policies.by_model(connection)
            for model, chain in self._chains.items():
                if self._run.model in (None, model):
                    rules = await selection.decided(connection, chain)
                    self._work[model] = list(_works(model, chain, rules, self._now))
            if self._run.cause == "schedule":
                self._begun = await frontiers.load(connection, self._chains, self._now)
            ends = [chain.latest(self._now) for chain in self._chains.values()]
            until = max((end for end in ends if end is not None), default=None)
            return await spans.ending(connection, until=until)

    async def _remember(self) -> None:
        """All that had expired by now is marked: the next run begins there."""
        swept = {
            each.place: each.cutoff
            for works in self._work.values()
            for each in works
            if each.looks_again
        }
        failpoint("retention.frontier.before")
        async with self._engine.begin() as connection:
            await frontiers.save(connection, self._chains, swept, self._now, begun=self._begun)
        failpoint("retention.frontier.after")

    async def _beyond_limits(self) -> None:
        """What is more than a policy keeps goes once all that had expired is marked."""
        for model in self._work:
            below = await self._limit_of(model)
            if below is None:
                continue
            until = received_at_of(below) + _SECOND
            work = _Work(model, "inference", until, _LIMITS, None, below)
            async with self._engine.connect() as connection:
                found = await spans.ending(connection, until=until)
            for span, _ in found:
                await self._erase(work, span)

    async def _limit_of(self, model: int) -> UUID | None:
        """What is older than this is more than its policy keeps; None: nothing, or nobody knows."""
        try:
            async with self._engine.begin() as connection:
                deadline = Deadline.after(_LIMIT_SECONDS)
                chain = self._chains[model]
                return await limits.beyond(connection, model, chain, self._now, deadline)
        except OutOfTime:
            failures.failed("limit_out_of_time")
            self._out_of_time = True
            return None

    async def _span(self, span: Span, *, is_closed: bool) -> None:
        failpoint("retention.span_close.before")
        goes_whole = await self._close(span, is_closed=is_closed)
        failpoint("retention.span_close.after")
        if goes_whole:
            await self._drop(span)
            return
        async with self._engine.connect() as connection:
            models = await spans.models_in(connection, span)
        for model in models:
            for work in self._work.get(model, ()):
                await self._erase(work, span)

    async def _close(self, span: Span, *, is_closed: bool) -> bool:
        """Whether the whole span goes, and no writer may write into it from now on."""
        ends = {model: chain.ends(self._now) for model, chain in self._chains.items()}
        if not is_closed and not any(end is not None and end >= span.hi for end in ends.values()):
            return False
        async with self._engine.connect() as connection:
            held = await spans.has_held(connection, span)
        if held and not is_closed:
            return False
        async with self._engine.begin() as connection:
            if not is_closed:
                return await spans.close(connection, span, ends)
            if not held and await spans.has_ended(connection, span, ends):
                return True
            await spans.reopen(connection, span)
            return False

    async def _drop(self, span: Span) -> None:
        """Objects first, then the partitions; a partition whose objects are not all gone stays.

        One with something that a hold keeps is open again at once: queries are to show it.
        """
        async with self._engine.connect() as connection:
            models = await spans.models_in(connection, span)
        for model in models:
            work = _Work(model, "inference", span.hi, _WHOLE_SPAN, None)
            await self._erase(work, span, whole_span=True)
        if self._spared:
            self._spared = False
            async with self._engine.begin() as connection:
                await spans.reopen(connection, span)
            return
        failpoint("retention.partition_drop.before")
        await drop(self._engine, span, self._run.id)
        failpoint("retention.partition_drop.after")

    async def _erase(self, work: _Work, span: Span, *, whole_span: bool = False) -> None:
        """Mark and erase, batch by batch, what was received in the span before the cutoff."""
        begun = self._begun.get(work.place, span.lo) if work.looks_again else span.lo
        lo, hi = max(begun, span.lo), min(work.cutoff, span.hi)
        last: UUID | None = None
        while (
            lo < hi
            and (last := await self._mark(work, lo, hi, last, whole_span=whole_span)) is not None
        ):
            one = self._erasures[work.model, work.scope]
            after = self._after.get(work.place)
            reached, fault = await self._eraser.step(one, after, whole_span=whole_span)
            if fault is not None or after is not None:
                # Marks have no order of time: what is marked before the place where something is
                # left waits for the end of the run, which looks at all of them again.
                self._after[work.place] = reached or after
            if whole_span and self._eraser.spared:
                self._spared = True
            # what follows something that stays is remembered one by one
            whole_span = whole_span and fault is None and not self._eraser.spared

    async def _mark(
        self, work: _Work, lo: datetime, hi: datetime, after: UUID | None, *, whole_span: bool
    ) -> UUID | None:
        """Mark one batch, and answer its last: from the commit on no query shows them."""
        failpoint("retention.mark.before")
        model, scope = work.model, work.scope
        one = self._erasures.get((model, scope))
        trial = uuid4()
        async with self._engine.connect() as connection:
            marked = await selection.mark_expired(
                connection,
                trial,
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
            if not marked.count:
                return None
            by = work.decided_by(self._chains[model])
            id = uuid4() if one is None else one.id
            begun = erasures.Begun(id, "policy", scope, self._run.id, decided_by=by)
            batch = await marking.tried(connection, begun, model, trial)
            # taken back: the ledger has it before it takes effect
            await connection.rollback()
        await self._ledger.write("erasure_batch", batch, actor=ACTOR)
        if one is None:
            self._erasures[model, scope] = await self._found(begun.id)
        failpoint("retention.mark.after")
        return marked.last

    async def _found(self, id: UUID) -> Erasure:
        async with self._engine.connect() as connection:
            found = await erasures.find(connection, id)
        assert found is not None, "its first batch made it"
        return found


def _works(model: int, chain: Chain, rules: Decided, now: datetime) -> Iterator[_Work]:
    """Whole inferences first: what goes whole has no part to lose."""
    cutoffs = [each.cutoffs(now) for each in chain.rules]
    for scope in _SCOPES:
        for number, each in enumerate(cutoffs):
            cutoff = each.of(scope)
            if cutoff is not None:
                by = None if rules.of_everything(number) else (rules, number)
                yield _Work(model, scope, cutoff, number, by)
