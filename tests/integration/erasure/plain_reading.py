"""The deletions, read plainly off the rules, holds and inferences, one inference after another."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from inference_store.query.filters.certain import doubts_of, find_doubts, make_certain
from inference_store.query.filters.evaluate import evaluate
from inference_store.query.filters.facts import Facts
from inference_store.query.filters.saved import resolve

Gone = set[tuple[UUID, str]]
PARTS = {"response": "keep_response", "input": "keep_input"}


@dataclass(frozen=True)
class KnownInference:
    """One inference, and what is gone of it already. `gone`: parts; `marked`: those that go."""

    uid: UUID
    facts: Facts
    flags: tuple[str, ...] = ()
    gone: frozenset[str] = frozenset()
    marked: frozenset[str] = frozenset()

    @property
    def received_at(self) -> datetime:
        """The time at which it arrived."""
        at: datetime = self.facts.properties["received_at"][0]
        return at


@dataclass(frozen=True)
class Holding:
    """A hold. `filter`: as it is kept; `model` None: of all."""

    filter: str
    model: int | None
    until: datetime | None = None
    released: bool = False


@dataclass(frozen=True)
class Reading:
    """One model: its policies, the nearest first, as documents; every hold there is."""

    model: int
    policies: Sequence[Mapping[str, Any]]
    holds: Sequence[Holding]
    now: datetime
    ages: Mapping[str, timedelta | None]
    inferences: Sequence[KnownInference] = field(default_factory=tuple)

    def goes(self) -> Gone:
        """Return each part that is to be marked: by age, then by the limits of what is left."""
        gone = {
            (inference.uid, part)
            for inference in self.inferences
            for part in self.list_expired(inference)
        }
        return gone | self._by_limits({uid for uid, part in gone if part == "inference"})

    def list_expired(self, inference: KnownInference) -> list[str]:
        """Return the parts of an inference that are too old."""
        deciding = self._deciding(inference)
        if deciding is None or self.held(inference) or "inference" in inference.marked:
            return []
        policy, rule = deciding
        if self._expired(policy, rule["keep_inference"], inference):
            return ["inference"]
        longest = {"keep_response": rule["keep_inference"], **rule}
        return [
            part
            for part, keep in PARTS.items()
            if part not in inference.gone | inference.marked
            and self._expired(policy, longest[keep], inference)
        ]

    def _deciding(
        self, inference: KnownInference
    ) -> tuple[Mapping[str, Any], Mapping[str, Any]] | None:
        for policy in self.policies:
            for rule in policy.get("rules", ()):
                if "saved" not in rule:
                    return policy, rule
                predicate = make_certain(resolve(rule["saved"], {}), doubts_of(inference.flags))
                if evaluate(predicate, inference.facts) is True:
                    return policy, rule
        return None

    def _expired(self, policy: Mapping[str, Any], keep: str, inference: KnownInference) -> bool:
        age = self.ages[keep]
        return age is not None and inference.received_at < self.now - max(
            age, self._minimum(policy)
        )

    def _minimum(self, policy: Mapping[str, Any]) -> timedelta:
        """The longest of those that bind the policy."""
        if policy.get("undercuts_minimum_age"):
            return timedelta(0)
        ages = [
            self.ages[policy["minimum_age"]] for policy in self.policies if "minimum_age" in policy
        ]
        return max((age for age in ages if age is not None), default=timedelta(0))

    def _by_limits(self, gone: set[UUID]) -> Gone:
        """The newest stay, up to the limit; what is held counts, and stays."""
        remaining = [
            inference
            for inference in sorted(
                self.inferences, key=lambda known_inference: known_inference.uid, reverse=True
            )
            if inference.uid not in gone and "inference" not in inference.marked
        ]
        goes: Gone = set()
        policy = next((policy_ for policy_ in self.policies if "max_inferences" in policy_), None)
        if policy is None:
            return goes
        for inference in remaining[policy["max_inferences"] :]:
            old = inference.received_at < self.now - self._minimum(policy)
            if old and not self.held(inference):
                goes.add((inference.uid, "inference"))
        return goes

    def held(self, inference: KnownInference) -> bool:
        """Check whether a hold in force keeps it: NULL does, and what is in doubt."""
        return any(self._keeps(hold, inference) for hold in self.holds)

    def _keeps(self, hold: Holding, inference: KnownInference) -> bool:
        if hold.released or (hold.until is not None and hold.until <= datetime.now(UTC)):
            return False
        if hold.model not in (None, self.model):
            return False
        predicate = resolve(hold.filter, {})
        if doubts_of(inference.flags) and find_doubts(predicate):
            return True  # rather too much than too little
        return evaluate(predicate, inference.facts) is not False
