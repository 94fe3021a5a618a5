"""The rules that apply to a model, from its own policy outwards: which rule decides, and the
cutoffs.

The meaning of a policy is implemented twice: here, for what arrives, and in SQL
(selection.py), for what is stored. A test compares the two.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar, Final, Literal, TypeVar
from uuid import UUID

from inference_store.query.filters import saved
from inference_store.query.filters.certain import doubts_of, make_certain
from inference_store.query.filters.evaluate import Facts, evaluate
from inference_store.query.filters.typed import Predicate

from .rules import Duration, RetentionPolicy, Rule, parse_duration

_Cutoff = TypeVar("_Cutoff", datetime, UUID)
ErasureScope = Literal["input", "response", "inference"]
"""The datum with the rest of the request, the response blob, or everything."""


@dataclass(frozen=True, slots=True)
class Cutoffs:
    """The times before which each part has expired; None: it is kept for ever."""

    input: datetime | None = None
    response: datetime | None = None
    inference: datetime | None = None

    def of(self, scope: ErasureScope) -> datetime | None:
        """Return the cutoff of a scope."""
        return {"input": self.input, "response": self.response, "inference": self.inference}[scope]

    def find_expired(self, received_at: datetime) -> tuple[ErasureScope, ...]:
        """Return what of an inference has expired: all of it, or its input, its response, both, or
        nothing."""
        if _is_before(received_at, self.inference):
            return ("inference",)
        parts: tuple[ErasureScope, ...] = ("response", "input")
        return tuple(part for part in parts if _is_before(received_at, self.of(part)))

    def meet(self, other: "Cutoffs") -> "Cutoffs":
        """Return cutoffs by which only that expires which has expired by both."""
        return Cutoffs(
            find_earlier(self.input, other.input),
            find_earlier(self.response, other.response),
            find_earlier(self.inference, other.inference),
        )


KEEP_ALL: Final = Cutoffs()


def find_earlier(first: _Cutoff | None, second: _Cutoff | None) -> _Cutoff | None:
    """Return the earlier of two cutoffs; None, by which nothing expires, is before all."""
    return None if first is None or second is None else min(first, second)


def _is_before(received_at: datetime, cutoff: datetime | None) -> bool:
    return cutoff is not None and received_at < cutoff


LevelName = Literal["model", "project", "default"]
LEVELS: tuple[LevelName, ...] = ("model", "project", "default")


@dataclass(frozen=True, slots=True)
class PolicyOwner:
    """The owner of a policy: a model or a project (by their ids), or the default, without an id."""

    level: LevelName
    subject: str = ""

    def __str__(self) -> str:
        return "the default" if self.level == "default" else f"{self.level} {self.subject!r}"


DEFAULT = PolicyOwner("default")


@dataclass(frozen=True, slots=True)
class EffectiveRule:
    """One rule of an effective policy, and its position."""

    of: PolicyOwner
    revision: int
    number: int
    """Its position in its policy, from 0."""
    rule: Rule
    predicate: Predicate | None
    """Its filter; None: it applies to everything."""
    minimum: tuple[Duration, ...]
    """Ages that it may not undercut."""

    @property
    def reference(self) -> dict[str, Any]:
        """The members by which a certificate names it."""
        return {**_cite(self.of, self.revision), "rule": self.number}

    def cutoffs(self, now: datetime) -> Cutoffs:
        """Return the times before which everything has expired by this rule."""
        least = [duration.before(now) for duration in self.minimum]
        ages = (self.rule.input, self.rule.response, self.rule.keep_inference)
        return Cutoffs(*(_find_cutoff(age, least, now) for age in ages))


@dataclass(frozen=True, slots=True)
class RetentionLimit:
    """The most inferences that are kept, the policy that sets it, and the ages that it may not
    undercut."""

    name: ClassVar[str] = "max_inferences"

    of: PolicyOwner
    revision: int
    most: int
    minimum: tuple[Duration, ...]

    @property
    def reference(self) -> dict[str, Any]:
        """The members by which a certificate names it."""
        return {**_cite(self.of, self.revision), "limit": self.name}

    def cutoff(self, now: datetime) -> datetime:
        """Return the time after which everything stays, however much it is."""
        return min((duration.before(now) for duration in self.minimum), default=now)


@dataclass(frozen=True, slots=True)
class EffectivePolicy:
    """The rules and the limit that apply to a model.

    What is pending deletes nothing before it begins, but what it keeps is kept already.
    """

    rules: tuple[EffectiveRule, ...] = ()
    limit: RetentionLimit | None = None
    coming: "EffectivePolicy | None" = None
    """What applies once everything pending has begun, if that is something else. Only what both
    delete is deleted."""

    def find_rule(self, facts: Facts, flags: Iterable[str] = ()) -> EffectiveRule | None:
        """Return the first rule in force whose filter is TRUE; NULL is not, nor is a filter that
        `flags` put in doubt.

        None: everything is kept.
        """
        doubts = doubts_of(flags)
        for rule in self.rules:
            if rule.predicate is None:
                return rule
            if saved.deletes(evaluate(make_certain(rule.predicate, doubts), facts)):
                return rule
        return None

    def find_cutoffs(self, facts: Facts, now: datetime, flags: Iterable[str] = ()) -> Cutoffs:
        """Return the cutoffs of an inference."""
        rule = self.find_rule(facts, flags)
        cutoffs = KEEP_ALL if rule is None else rule.cutoffs(now)
        if self.coming is None:
            return cutoffs
        return cutoffs.meet(self.coming.find_cutoffs(facts, now, flags))

    def find_end(self, now: datetime) -> datetime | None:
        """Return the time before which everything has expired, whichever rule decides; None: it may
        be kept."""
        if not self.rules or self.rules[-1].predicate is not None:
            return None
        cutoffs = [cutoff.cutoffs(now).inference for cutoff in self.rules]
        instants = [rule for rule in cutoffs if rule is not None]
        end = min(instants) if len(instants) == len(cutoffs) else None
        return end if self.coming is None else find_earlier(end, self.coming.find_end(now))

    def find_certain_cutoffs(self, now: datetime) -> Cutoffs:
        """Return the cutoffs of an inference of which nothing is known but its age."""
        if self.rules and self.rules[0].predicate is None:
            cutoffs = self.rules[0].cutoffs(now)
        else:
            cutoffs = Cutoffs(inference=self.find_end(now))
        return (
            cutoffs if self.coming is None else cutoffs.meet(self.coming.find_certain_cutoffs(now))
        )

    def find_latest(self, now: datetime) -> datetime | None:
        """Return the time from which on nothing has expired by age."""
        parts: tuple[ErasureScope, ...] = ("input", "response", "inference")
        cutoffs = [cutoff.cutoffs(now) for cutoff in self.rules]
        instants = [at for rule in cutoffs for part in parts if (at := rule.of(part)) is not None]
        latest = max(instants, default=None)
        return latest if self.coming is None else find_earlier(latest, self.coming.find_latest(now))

    def find_settled(self, cutoff: datetime, scope: ErasureScope, now: datetime) -> datetime:
        """Return the time before which, of a rule with this cutoff, time alone lets nothing more
        expire: everything there is too old for each rule of what is coming that has an age."""
        rules = () if self.coming is None else self.coming.rules
        cutoffs = [rule.cutoffs(now).of(scope) for rule in rules]
        return min([cutoff, *(at for at in cutoffs if at is not None)])


def merge_policies(policies: Sequence[tuple[PolicyOwner, int, RetentionPolicy]]) -> EffectivePolicy:
    """Return the effective policy of policies, as (owner, revision, policy), the nearest first.

    Raises Invalid if a filter cannot be read.
    """
    minimum = tuple(dict.fromkeys(_parse_minimum(policy) for _, _, policy in policies)) or ()
    least = tuple(duration for duration in minimum if duration is not None)
    return EffectivePolicy(tuple(_iterate_rules(policies, least)), _find_limit(policies, least))


def _iterate_rules(
    policies: Sequence[tuple[PolicyOwner, int, RetentionPolicy]], least: tuple[Duration, ...]
) -> Iterable[EffectiveRule]:
    for owner, revision, policy in policies:
        own = () if policy.undercuts_minimum_age else least
        for number, rule in enumerate(policy.rules):
            predicate = None if rule.saved is None else saved.resolve(rule.saved, {})
            yield EffectiveRule(owner, revision, number, rule, predicate, own)
            if predicate is None:
                return


def _find_limit(
    policies: Sequence[tuple[PolicyOwner, int, RetentionPolicy]], least: tuple[Duration, ...]
) -> RetentionLimit | None:
    for owner, revision, policy in policies:
        if policy.max_inferences is not None:
            own = () if policy.undercuts_minimum_age else least
            return RetentionLimit(owner, revision, policy.max_inferences, own)
    return None


def _cite(owner: PolicyOwner, revision: int) -> dict[str, Any]:
    return {"level": owner.level, "subject": owner.subject, "version": revision}


def _parse_minimum(policy: RetentionPolicy) -> Duration | None:
    return None if policy.minimum_age is None else parse_duration(policy.minimum_age)


def _find_cutoff(keep: str, least: Iterable[datetime], now: datetime) -> datetime | None:
    duration = parse_duration(keep)
    return None if duration is None else min([duration.before(now), *least])
