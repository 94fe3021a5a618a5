"""A model's rules, from its own policy outwards: which one decides, and what has then expired.

The meaning of a policy stands twice: here, for what arrives, and in SQL (selection), for what is
stored. A test holds that both say the same.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from inference_store.erasure.policies.durations import Duration, parse_duration
from inference_store.query.filters import saved
from inference_store.query.filters.certain import doubts_of, make_certain
from inference_store.query.filters.evaluate import evaluate
from inference_store.query.filters.facts import Facts
from inference_store.query.filters.typed import Predicate

from .cutoffs import KEPT, Cutoffs, Scope
from .rules import RetentionPolicy, Rule

Level = Literal["model", "project", "default"]
Limit = Literal["max_inferences", "max_bytes"]
LEVELS: tuple[Level, ...] = ("model", "project", "default")


@dataclass(frozen=True, slots=True)
class Of:
    """Whose policy it is: a model's, a project's (by their ids), or the default, of no id."""

    level: Level
    subject: str = ""

    def __str__(self) -> str:
        return "the default" if self.level == "default" else f"{self.level} {self.subject!r}"


DEFAULT = Of("default")


@dataclass(frozen=True, slots=True)
class Decider:
    """One rule of a chain, and where it stands."""

    of: Of
    revision: int
    number: int
    """Its place in its policy, from 0."""
    rule: Rule
    predicate: Predicate | None
    """Its filter; None: it is TRUE of everything."""
    minimum: tuple[Duration, ...]
    """Ages that it may not undercut."""

    @property
    def said(self) -> dict[str, Any]:
        """How a certificate names it."""
        return {**_said(self.of, self.revision), "rule": self.number}

    def cutoffs(self, now: datetime) -> Cutoffs:
        """What it lets expire, at an instant."""
        least = [each.before(now) for each in self.minimum]
        kept = (self.rule.input, self.rule.response, self.rule.keep_inference)
        return Cutoffs(*(_cutoff(each, least, now) for each in kept))


@dataclass(frozen=True, slots=True)
class LimitOf:
    """A limit, the policy that says it, and the ages that it may not undercut."""

    of: Of
    revision: int
    name: Limit
    most: int
    minimum: tuple[Duration, ...]

    @property
    def said(self) -> dict[str, Any]:
        """How a certificate names it."""
        return {**_said(self.of, self.revision), "limit": self.name}

    def cutoff(self, now: datetime) -> datetime:
        """What was received later stays, however much it is."""
        return min((each.before(now) for each in self.minimum), default=now)


@dataclass(frozen=True, slots=True)
class Chain:
    """What applies to a model."""

    rules: tuple[Decider, ...] = ()
    limits: tuple[LimitOf, ...] = ()

    def deciding(self, facts: Facts, flags: Iterable[str] = ()) -> Decider | None:
        """The first rule whose filter is TRUE; NULL is not, nor what `flags` put in doubt. None:
        everything is kept."""
        doubts = doubts_of(flags)
        for each in self.rules:
            if each.predicate is None:
                return each
            if saved.deletes(evaluate(make_certain(each.predicate, doubts), facts)):
                return each
        return None

    def decide(self, facts: Facts, now: datetime, flags: Iterable[str] = ()) -> Cutoffs:
        """What goes of an inference by age."""
        found = self.deciding(facts, flags)
        return KEPT if found is None else found.cutoffs(now)

    def ends(self, now: datetime) -> datetime | None:
        """What was received before has expired whichever rule decides; None: it may be kept."""
        if not self.rules or self.rules[-1].predicate is not None:
            return None
        found = [each.cutoffs(now).inference for each in self.rules]
        known = [each for each in found if each is not None]
        return min(known) if len(known) == len(found) else None

    def certain(self, now: datetime) -> Cutoffs:
        """What has expired of an inference of which nothing is known but its age."""
        if self.rules and self.rules[0].predicate is None:
            return self.rules[0].cutoffs(now)
        return Cutoffs(inference=self.ends(now))

    def latest(self, now: datetime) -> datetime | None:
        """Nothing that was received from here on has expired by age."""
        parts: tuple[Scope, ...] = ("input", "response", "inference")
        cutoffs = [each.cutoffs(now) for each in self.rules]
        found = [at for each in cutoffs for part in parts if (at := each.of(part)) is not None]
        return max(found, default=None)


def chain_of(policies: Sequence[tuple[Of, int, RetentionPolicy]]) -> Chain:
    """The chain of policies, as (of, revision, policy), the nearest first. Raises Invalid for a
    filter that cannot be read."""
    minimum = tuple(dict.fromkeys(_minimum(policy) for _, _, policy in policies)) or ()
    least = tuple(each for each in minimum if each is not None)
    return Chain(tuple(_rules(policies, least)), tuple(_limits(policies, least)))


def _rules(
    policies: Sequence[tuple[Of, int, RetentionPolicy]], least: tuple[Duration, ...]
) -> Iterable[Decider]:
    for of, revision, policy in policies:
        own = () if policy.undercuts_minimum_age else least
        for number, rule in enumerate(policy.rules):
            predicate = None if rule.saved is None else saved.resolve(rule.saved, {})
            yield Decider(of, revision, number, rule, predicate, own)
            if predicate is None:
                return


def _limits(
    policies: Sequence[tuple[Of, int, RetentionPolicy]], least: tuple[Duration, ...]
) -> Iterable[LimitOf]:
    names: tuple[Limit, ...] = ("max_inferences", "max_bytes")
    for name in names:
        for of, revision, policy in policies:
            most = getattr(policy, name)
            if most is not None:
                own = () if policy.undercuts_minimum_age else least
                yield LimitOf(of, revision, name, most, own)
                break


def _said(of: Of, revision: int) -> dict[str, Any]:
    return {"level": of.level, "subject": of.subject, "version": revision}


def _minimum(policy: RetentionPolicy) -> Duration | None:
    return None if policy.minimum_age is None else parse_duration(policy.minimum_age)


def _cutoff(keep: str, least: Iterable[datetime], now: datetime) -> datetime | None:
    duration = parse_duration(keep)
    return None if duration is None else min([duration.before(now), *least])
