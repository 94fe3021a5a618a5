"""One run: what the policies no longer keep is marked and erased, the oldest first."""

from datetime import UTC, datetime

from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.store.failpoints import failpoint
from inference_store.store.partitions import Span
from inference_store.store.retention import erasures, policies, selection, spans
from inference_store.store.retention.erasures import Erasure
from inference_store.store.retention.identities import Identity
from inference_store.store.retention.policies import Cutoffs, Scope
from inference_store.store.retention.runs import Run

from .dropping import drop
from .eraser import Eraser


class Sweep:
    """Carries one run out. Raises BlobsAway and the database's trouble: begin again later."""

    def __init__(
        self,
        engine: AsyncEngine,
        eraser: Eraser,
        run: Run,
        *,
        batch: int,
        now: datetime | None = None,
    ) -> None:
        self._engine = engine
        self._eraser = eraser
        self._run = run
        self._batch = batch
        self._now = now or datetime.now(UTC)
        self._erasures: dict[tuple[int, Scope], Erasure] = {}
        self._after: dict[tuple[int, Scope], Identity | None] = {}

    async def carry_out(self) -> str | None:
        """Erase all that has expired; what could not be erased, in one sentence."""
        async with self._engine.connect() as connection:
            rules = await policies.by_model(connection)
            cutoffs = {model: policies.cutoffs(rule, self._now) for model, rule in rules.items()}
            found = await spans.ending(connection, until=_latest(cutoffs))
        for span, is_closed in found:
            await self._span(span, cutoffs, is_closed=is_closed)
        states = [await self._eraser.finish(one) for one in self._erasures.values()]
        failed = states.count("failed")
        return f"{failed} erasures have something left over; they say what" if failed else None

    async def _span(self, span: Span, cutoffs: dict[int, Cutoffs], *, is_closed: bool) -> None:
        if await self._close(span, cutoffs, is_closed=is_closed):
            await self._drop(span)
            return
        async with self._engine.connect() as connection:
            models = await spans.models_in(connection, span)
        for model in models:
            if model in cutoffs and self._run.model in (None, model):
                at = cutoffs[model]
                await self._erase(model, "inference", span, at.inference)
                await self._erase(model, "input", span, at.input)

    async def _close(self, span: Span, cutoffs: dict[int, Cutoffs], *, is_closed: bool) -> bool:
        """Whether the whole span goes, and no writer may write into it from now on."""
        ends = {model: at.inference for model, at in cutoffs.items()}
        if not is_closed and not any(end is not None and end >= span.hi for end in ends.values()):
            return False
        async with self._engine.begin() as connection:
            if not is_closed:
                return await spans.close(connection, span, ends)
            if await spans.has_ended(connection, span, ends):
                return True
            await spans.reopen(connection, span)
            return False

    async def _drop(self, span: Span) -> None:
        """Objects first, then the partitions; a partition whose objects are not all gone stays."""
        async with self._engine.connect() as connection:
            models = await spans.models_in(connection, span)
        for model in models:
            await self._erase(model, "inference", span, span.hi, whole_span=True)
        failpoint("retention.partition_drop.before")
        await drop(self._engine, span, self._run.id)
        failpoint("retention.partition_drop.after")

    async def _erase(
        self,
        model: int,
        scope: Scope,
        span: Span,
        cutoff: datetime | None,
        *,
        whole_span: bool = False,
    ) -> None:
        """Mark and erase, batch by batch, what was received in the span before the cutoff."""
        if cutoff is None or cutoff <= span.lo:
            return
        while await self._mark(model, scope, span, min(cutoff, span.hi)):
            one, kind = self._erasures[model, scope], (model, scope)
            after, _ = await self._eraser.step(one, self._after.get(kind), whole_span=whole_span)
            self._after[kind] = after or self._after.get(kind)

    async def _mark(self, model: int, scope: Scope, span: Span, until: datetime) -> int:
        """Mark one batch: from the commit on no query shows it."""
        failpoint("retention.mark.before")
        async with self._engine.begin() as connection:
            one = self._erasures.get((model, scope))
            if one is None:
                one = await erasures.create(
                    connection,
                    model=model,
                    cause="policy",
                    scope=scope,
                    run=self._run.id,
                    state="marking",
                )
            else:
                await erasures.advance(connection, one.id, "marking")
            marked = await selection.mark_expired(
                connection,
                one.id,
                model=model,
                scope=scope,
                lo=span.lo,
                hi=until,
                limit=self._batch,
            )
            if not marked:
                # nothing to do: an erasure that marks nothing is not worth a row
                await connection.rollback()
                return 0
        self._erasures[model, scope] = one
        failpoint("retention.mark.after")
        return marked


def _latest(cutoffs: dict[int, Cutoffs]) -> datetime | None:
    ends = [at for one in cutoffs.values() for at in (one.input, one.inference) if at is not None]
    return max(ends, default=None)
