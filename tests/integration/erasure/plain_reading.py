"""The deletions, read plainly off the rules, holds and inferences, one inference after another."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from inference_store.query.filters.certain import find_doubts, make_certain, resolve
from tests.unit.query.filters.oracle import Facts, doubts_of, evaluate

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
    """One model: its policies, the nearest first, as documents; every hold there is.

    `coming`: the policies once everything pending has begun. Only what both sets take goes.
    """

    model: int
    policies: Sequence[Mapping[str, Any]]
    holds: Sequence[Holding]
    now: datetime
    ages: Mapping[str, timedelta | None]
    inferences: Sequence[KnownInference] = field(default_factory=tuple)
    coming: Sequence[Mapping[str, Any]] | None = None

    def goes(self) -> Gone:
        """Return each part that is to be marked: by age, then by the limits of what is left."""
        gone = {
            (inference.uid, part)
            for inference in self.inferences
            for part in self.list_expired(inference)
        }
        beyond = set.intersection(*(reading.list_beyond() for reading in self.list_alone()))
        return gone | {(uid, "inference") for uid in beyond}

    def list_alone(self) -> list["Reading"]:
        """Return the reading of each set of policies alone."""
        sets = [self.policies] if self.coming is None else [self.policies, self.coming]
        return [replace(self, policies=policies, coming=None) for policies in sets]

    def list_expired(self, inference: KnownInference) -> list[str]:
        if self._stays(inference):
            return []
        due = set.intersection(*(reading.list_due(inference) for reading in self.list_alone()))
        if "inference" in due:
            return ["inference"]
        return [part for part in PARTS if part in due - inference.gone - inference.marked]

    def list_due(self, inference: KnownInference) -> set[str]:
        """Return what the deciding rule lets go: the inference goes with all its parts."""
        deciding = self._deciding(inference)
        if deciding is None:
            return set()
        policy, rule = deciding
        longest = {"keep_response": rule["keep_inference"], **rule}
        keeps = {**PARTS, "inference": "keep_inference"}
        return {
            part for part, keep in keeps.items() if self._expired(policy, longest[keep], inference)
        }

    def _stays(self, inference: KnownInference) -> bool:
        return self.held(inference) or "inference" in inference.marked

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

    def list_beyond(self) -> set[UUID]:
        """Return what is older than the newest that may stay; what is held counts, and stays."""
        policy = next((policy_ for policy_ in self.policies if "max_inferences" in policy_), None)
        if policy is None:
            return set()
        left = [
            inference.uid
            for inference in self.inferences
            if "inference" not in inference.marked
            and (self.held(inference) or "inference" not in self.list_due(inference))
        ]
        kept = sorted(left, reverse=True)[: policy["max_inferences"]]
        before = self.now - self._minimum(policy)
        return {
            inference.uid
            for inference in self.inferences
            if len(left) > len(kept)
            and inference.uid < min(kept)
            and inference.received_at < before
            and not self._stays(inference)
        }

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
