"""The work of a run: for each rule that applies to a model, one scope before a cutoff."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.erasure import policies
from inference_store.erasure.policies import Chain, Scope
from inference_store.erasure.policies.frontiers import Frontier
from inference_store.erasure.select import selection
from inference_store.erasure.select.selection import Decided

WHOLE_SPAN, LIMITS = -1, -2
_SCOPES: tuple[Scope, ...] = ("inference", "response", "input")


class PolicyChanged(Exception):
    """Another policy applies to the model by now."""


@dataclass(frozen=True, slots=True)
class Work:
    """What one rule lets expire of a model: one scope, before the cutoff."""

    model: int
    chain: Chain
    scope: Scope
    cutoff: datetime
    rule: int
    by: tuple[Decided, int] | None = None
    """None: of everything."""
    below: UUID | None = None

    @property
    def watermark_key(self) -> Frontier:
        """Identifies its watermark."""
        return self.model, self.rule, self.scope

    @property
    def decided_by(self) -> list[dict[str, Any]]:
        """The rules or limits that let it expire, as a certificate names them."""
        if self.rule == LIMITS:
            return [each.said for each in self.chain.limits]
        rules = self.chain.rules
        found = rules if self.rule == WHOLE_SPAN else rules[self.rule : self.rule + 1]
        return [each.said for each in found]

    @property
    def is_rechecked(self) -> bool:
        """Whether the next run would check again what this one leaves."""
        return self.scope == "response" or self.by is not None


class Plan:
    """What applies to each model, as it was read last, and the work that follows from it."""

    def __init__(self, now: datetime) -> None:
        self.now = now
        self._models: set[int] | None = None
        self.chains: dict[int, Chain] = {}
        self.work: dict[int, list[Work]] = {}
        self.changed: set[int] = set()
        """Models whose policies have changed since the run began."""

    async def prepare(self, connection: AsyncConnection, models: set[int] | None) -> None:
        """Read the policies of these models, or of all."""
        self._models = models
        self.chains = await policies.by_model(connection)
        for model in self.chains:
            await self._plan(connection, model)

    async def follow(self, connection: AsyncConnection, model: int) -> None:
        """Go on with the policy that applies to a model now."""
        self.chains.pop(model, None)
        self.chains |= await policies.by_model(connection, {model})
        self.changed.add(model)
        await self._plan(connection, model)

    async def confirm(self, connection: AsyncConnection, work: Work) -> None:
        """Raise Changed if it no longer applies."""
        now = await policies.by_model(connection, {work.model})
        if now.get(work.model) != work.chain:
            raise PolicyChanged

    async def find_current_ends(self, connection: AsyncConnection) -> dict[int, datetime | None]:
        """Return what `ends` does, for those models whose policies have not changed."""
        now = await policies.by_model(connection)
        return self.find_ends(
            model for model, each in now.items() if each == self.chains.get(model)
        )

    def find_ends(self, models: Iterable[int] | None = None) -> dict[int, datetime | None]:
        """Return the time before which everything of each model has expired.

        Of these models, or of all, only those of the run: what is deleted by it belongs to no other
        model.
        """
        some = self.chains if models is None else models
        return {model: self.chains[model].ends(self.now) for model in some if self.covers(model)}

    def covers(self, model: int) -> bool:
        """Whether the run covers this model."""
        return self._models is None or model in self._models

    def find_latest(self) -> datetime | None:
        """Return the time after which nothing has expired by age."""
        ends = [each.latest(self.now) for model, each in self.chains.items() if self.covers(model)]
        return max((end for end in ends if end is not None), default=None)

    def find_watermarks(self) -> dict[Frontier, datetime]:
        """Return how far the run came once all is done, for the models that have not changed
        meanwhile."""
        return {
            each.watermark_key: each.cutoff
            for model, works in self.work.items()
            for each in works
            if each.is_rechecked and model not in self.changed
        }

    async def _plan(self, connection: AsyncConnection, model: int) -> None:
        chain = self.chains.get(model)
        if chain is None or not self.covers(model):
            self.work.pop(model, None)
            return
        rules = await selection.decided(connection, chain)
        self.work[model] = list(list_work(model, chain, rules, self.now))


def list_work(model: int, chain: Chain, rules: Decided, now: datetime) -> Iterator[Work]:
    """Yield whole inferences first: what is deleted as a whole has no part left to delete."""
    cutoffs = [each.cutoffs(now) for each in chain.rules]
    for scope in _SCOPES:
        for number, each in enumerate(cutoffs):
            cutoff = each.of(scope)
            if cutoff is not None:
                by = None if rules.of_everything(number) else (rules, number)
                yield Work(model, chain, scope, cutoff, number, by)
