"""What goes, read plainly off the rules, holds and inferences, one inference after another."""

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
class Known:
    """One inference, and what is gone of it already. `gone`: parts; `marked`: those that go."""

    uid: UUID
    facts: Facts
    flags: tuple[str, ...] = ()
    size: int | None = None
    gone: frozenset[str] = frozenset()
    marked: frozenset[str] = frozenset()

    @property
    def received_at(self) -> datetime:
        """When it came."""
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
    inferences: Sequence[Known] = field(default_factory=tuple)

    def goes(self) -> Gone:
        """Each part that is to be marked: by age, then by the limits of what is left."""
        gone = {(one.uid, part) for one in self.inferences for part in self._by_age(one)}
        return gone | self._by_limits({uid for uid, part in gone if part == "inference"})

    def _by_age(self, one: Known) -> list[str]:
        found = self._deciding(one)
        if found is None or self.held(one) or "inference" in one.marked:
            return []
        policy, rule = found
        if self._expired(policy, rule["keep_inference"], one):
            return ["inference"]
        longest = {"keep_response": rule["keep_inference"], **rule}
        return [
            part
            for part, keep in PARTS.items()
            if part not in one.gone | one.marked and self._expired(policy, longest[keep], one)
        ]

    def _deciding(self, one: Known) -> tuple[Mapping[str, Any], Mapping[str, Any]] | None:
        for policy in self.policies:
            for rule in policy.get("rules", ()):
                if "saved" not in rule:
                    return policy, rule
                predicate = make_certain(resolve(rule["saved"], {}), doubts_of(one.flags))
                if evaluate(predicate, one.facts) is True:
                    return policy, rule
        return None

    def _expired(self, policy: Mapping[str, Any], keep: str, one: Known) -> bool:
        age = self.ages[keep]
        return age is not None and one.received_at < self.now - max(age, self._minimum(policy))

    def _minimum(self, policy: Mapping[str, Any]) -> timedelta:
        """The longest of those that bind the policy."""
        if policy.get("undercuts_minimum_age"):
            return timedelta(0)
        found = [self.ages[each["minimum_age"]] for each in self.policies if "minimum_age" in each]
        return max((each for each in found if each is not None), default=timedelta(0))

    def _by_limits(self, gone: set[UUID]) -> Gone:
        """The newest stay, up to the limit; what is held counts, and stays."""
        left = [
            one
            for one in sorted(self.inferences, key=lambda each: each.uid, reverse=True)
            if one.uid not in gone and "inference" not in one.marked
        ]
        found: Gone = set()
        for name in ("max_inferences", "max_bytes"):
            policy = next((each for each in self.policies if name in each), None)
            if policy is None:
                continue
            so_far = 0
            for one in left:
                so_far += 1 if name == "max_inferences" else one.size or 0
                old = one.received_at < self.now - self._minimum(policy)
                if so_far > policy[name] and old and not self.held(one):
                    found.add((one.uid, "inference"))
        return found

    def held(self, one: Known) -> bool:
        """Whether a hold in force keeps it: NULL does, and what is in doubt."""
        return any(self._keeps(each, one) for each in self.holds)

    def _keeps(self, hold: Holding, one: Known) -> bool:
        if hold.released or (hold.until is not None and hold.until <= datetime.now(UTC)):
            return False
        if hold.model not in (None, self.model):
            return False
        predicate = resolve(hold.filter, {})
        if doubts_of(one.flags) and find_doubts(predicate):
            return True  # rather too much than too little
        return evaluate(predicate, one.facts) is not False
