"""What a run has to do: by each rule of what applies to a model, one part, before a cutoff."""

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


class Changed(Exception):
    """By now another policy applies to the model."""


@dataclass(frozen=True, slots=True)
class Work:
    """What one rule of a chain lets expire of a model: one part, before the cutoff."""

    model: int
    chain: Chain
    scope: Scope
    cutoff: datetime
    rule: int
    by: tuple[Decided, int] | None = None
    """None: of everything."""
    below: UUID | None = None

    @property
    def place(self) -> Frontier:
        """Its frontier."""
        return self.model, self.rule, self.scope

    @property
    def decided_by(self) -> list[dict[str, Any]]:
        """Which of the chain's rules or limits let it expire, as a certificate names them."""
        if self.rule == LIMITS:
            return [each.said for each in self.chain.limits]
        rules = self.chain.rules
        found = rules if self.rule == WHOLE_SPAN else rules[self.rule : self.rule + 1]
        return [each.said for each in found]

    @property
    def looks_again(self) -> bool:
        """Whether what it leaves would be looked at in the next run too."""
        return self.scope == "response" or self.by is not None


class Plan:
    """What applies to which model, as it was read last, and the work that follows from it."""

    def __init__(self, now: datetime) -> None:
        self.now = now
        self._models: set[int] | None = None
        self.chains: dict[int, Chain] = {}
        self.work: dict[int, list[Work]] = {}
        self.changed: set[int] = set()
        """Models whose policies have changed since the run began."""

    async def prepare(self, connection: AsyncConnection, models: set[int] | None) -> None:
        """Read all of it; of these models, or of all."""
        self._models = models
        self.chains = await policies.by_model(connection)
        for model in self.chains:
            await self._plan(connection, model)

    async def follow(self, connection: AsyncConnection, model: int) -> None:
        """Go on by what applies to a model now."""
        self.chains.pop(model, None)
        self.chains |= await policies.by_model(connection, {model})
        self.changed.add(model)
        await self._plan(connection, model)

    async def confirm(self, connection: AsyncConnection, work: Work) -> None:
        """Raises Changed where it is no longer what applies."""
        now = await policies.by_model(connection, {work.model})
        if now.get(work.model) != work.chain:
            raise Changed

    async def ends_now(self, connection: AsyncConnection) -> dict[int, datetime | None]:
        """As `ends`, of those models alone whose policies have not changed."""
        now = await policies.by_model(connection)
        return self.ends(model for model, each in now.items() if each == self.chains.get(model))

    def ends(self, models: Iterable[int] | None = None) -> dict[int, datetime | None]:
        """Until when everything of these models, or of all, has expired; of the run's alone: what
        goes by it is no other model's."""
        some = self.chains if models is None else models
        return {model: self.chains[model].ends(self.now) for model in some if self.is_of(model)}

    def is_of(self, model: int) -> bool:
        """Whether the run is of this model."""
        return self._models is None or model in self._models

    def latest(self) -> datetime | None:
        """Nothing that was received from here on has expired by age."""
        ends = [each.latest(self.now) for model, each in self.chains.items() if self.is_of(model)]
        return max((end for end in ends if end is not None), default=None)

    def swept(self) -> dict[Frontier, datetime]:
        """How far it came, once all of it is done: of whom nothing has changed meanwhile."""
        return {
            each.place: each.cutoff
            for model, works in self.work.items()
            for each in works
            if each.looks_again and model not in self.changed
        }

    async def _plan(self, connection: AsyncConnection, model: int) -> None:
        chain = self.chains.get(model)
        if chain is None or not self.is_of(model):
            self.work.pop(model, None)
            return
        rules = await selection.decided(connection, chain)
        self.work[model] = list(works_of(model, chain, rules, self.now))


def works_of(model: int, chain: Chain, rules: Decided, now: datetime) -> Iterator[Work]:
    """Whole inferences first: what goes whole has no part to lose."""
    cutoffs = [each.cutoffs(now) for each in chain.rules]
    for scope in _SCOPES:
        for number, each in enumerate(cutoffs):
            cutoff = each.of(scope)
            if cutoff is not None:
                by = None if rules.of_everything(number) else (rules, number)
                yield Work(model, chain, scope, cutoff, number, by)
