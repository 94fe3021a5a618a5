"""The work of a run: for each rule that applies to a model, one scope before a cutoff."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.erasure import policies
from inference_store.erasure.policies import EffectivePolicy, ErasureScope
from inference_store.erasure.policies.watermarks import WatermarkKey
from inference_store.erasure.select import selection
from inference_store.erasure.select.selection import CompiledRules

WHOLE_SPAN, LIMITS = -1, -2
_SCOPES: tuple[ErasureScope, ...] = ("inference", "response", "input")


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
    for scope in _SCOPES:
        for number in range(len(chain.rules)):
            cutoff = rules.find_cutoff(number, scope)
            if cutoff is not None:
                by = None if rules.is_unconditional(number) else (rules, number)
                yield Work(model, chain, scope, cutoff, number, by)
