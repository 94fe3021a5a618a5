"""The rules that apply to a model, from its own policy outwards: which rule decides, and the
cutoffs.

What decides is implemented twice: here, for what arrives, and in SQL (selection.py), for what is
stored. A test compares the two.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Annotated, Any, ClassVar, Final, Literal, Self, TypeVar
from uuid import UUID

from pydantic import AfterValidator, Field, model_validator

from inference_store.inference.events.event import LOWEST
from inference_store.inference.field_docs import Body, ShortText, WrongField
from inference_store.inference.iso_durations import Duration, read_duration
from inference_store.query.filters import certain
from inference_store.query.filters.typed import Predicate

# A retention policy: rules, each with its three ages, and what bounds them.
#
# Ages count from `received_at`, and apply to what is stored already as to what still comes. They
# are ISO 8601 durations, or `forever`. Weeks and shorter units are exact. Months and years go by
# the calendar, in UTC, and end on the month's last day if the day does not exist (a month before
# March 31 is February 28 or 29).

FOREVER = "forever"


class Age(Duration):
    """An age to which something is kept."""

    def before(self, at: datetime) -> datetime:
        """Return the instant that long ago; never before 2000, when no inference was received."""
        try:
            return max(super().before(at), LOWEST)
        except OverflowError:
            return LOWEST

    def find_end(self, at: datetime) -> datetime | None:
        """Return the first instant at which `at` was that long ago; None: beyond the calendar."""
        try:
            estimate = self.after(at.replace(day=1)) + timedelta(days=at.day - 1)
            # the day may not exist there: months end on other days, by three at most
            days = (estimate + timedelta(days=n) for n in range(-4, 5))
            return next((day for day in days if self.before(day) >= at), None)
        except OverflowError:
            return None


@lru_cache(maxsize=1024)
def parse_duration(text: str) -> Age | None:
    """Return a duration; None for `forever`. Raises ValueError for any other text."""
    if text == FOREVER:
        return None
    duration = read_duration(text)
    if duration is None:
        raise ValueError(
            f"{text[:64]!r} is neither an ISO 8601 duration (like P30D, PT12H or P1Y6M)"
            " nor 'forever'"
        )
    return Age(duration.months, duration.exact)


MOST_RULES: Final = 32
# Every day of a leap cycle: a duration that is shorter on all of them is shorter.
_REFERENCES = tuple(datetime(2096, 2, 1, tzinfo=UTC) + timedelta(days=n) for n in range(0, 1461))


def _check_duration(text: str) -> str:
    parse_duration(text)
    return text


def _check_finite(text: str) -> str:
    if parse_duration(text) is None:
        raise ValueError("it must be an ISO 8601 duration, such as P7D; `forever` is for rules")
    return text


Keep = Annotated[
    str,
    AfterValidator(_check_duration),
    Field(
        max_length=64,
        description="An ISO 8601 duration (days and below exact, months and years by the"
        " calendar, UTC) or `forever`.",
        examples=["P30D", "P1Y", "PT12H", "forever"],
    ),
]
Count = Annotated[int, Field(strict=True, ge=1, le=2**62)]


class Ages(Body):
    """The ages to which a rule keeps the request with its datum, the response, and everything."""

    name: ShortText | None = None
    """For people; two rules of a policy have two names."""
    keep_input: Keep | None = None
    """Left out: as long as the inference."""
    keep_response: Keep | None = None
    """Left out: as long as the inference."""
    keep_inference: Keep

    @model_validator(mode="after")
    def _parts_go_first(self) -> Self:
        for part in ("keep_input", "keep_response"):
            age = getattr(self, part)
            if age is not None and not is_never_longer(age, self.keep_inference):
                raise WrongField(
                    part,
                    f"{age} must not be longer than `keep_inference` ({self.keep_inference}) on any"
                    " day of the calendar",
                )
        return self

    @property
    def input(self) -> str:
        """For how long the input is kept."""
        return self.keep_input or self.keep_inference

    @property
    def response(self) -> str:
        """For how long the response is kept."""
        return self.keep_response or self.keep_inference


class Rule(Ages):
    """A rule as it is stored."""

    filter: str | None = None
    """CQL2-Text, for people."""
    saved: str | None = None
    """The filter, resolved: query/filters/certain.py. None: the rule is of everything."""


class Bounds(Body):
    """The limits and the minimum age of a policy."""

    max_inferences: Count | None = None
    """Of each model at most so many inferences are kept; the oldest go first."""
    minimum_age: (
        Annotated[
            str,
            AfterValidator(_check_finite),
            Field(max_length=64, description="An ISO 8601 duration.", examples=["P7D"]),
        ]
        | None
    ) = None
    """No rule and no limit, of this policy or another, takes what is younger."""
    undercuts_minimum_age: Annotated[bool, Field(strict=True)] = False
    """This policy's own rules and limits go against the minimum age: needs `override`."""


class RetentionPolicy(Bounds):
    """A policy as it is stored."""

    rules: tuple[Rule, ...] = ()

    @model_validator(mode="after")
    def _makes_sense(self) -> Self:
        check_rules([(rule.name, rule.saved is not None) for rule in self.rules])
        check_not_empty(len(self.rules), self)
        return self


def check_rules(rules: Sequence[tuple[str | None, bool]]) -> None:
    """Raise WrongField if one of the rules, as (name, has a filter), could never apply."""
    names: set[str] = set()
    for number, (name, has_filter) in enumerate(rules):
        if name is not None and name in names:
            raise WrongField(f"rules[{number}].name", f"another rule is named {name!r} too")
        names |= {name} if name is not None else set()
        if not has_filter and number + 1 < len(rules):
            raise WrongField(
                f"rules[{number}].filter",
                "without a filter the rule applies to everything, and the rules after it never"
                " apply: move it to the end, or give it a filter",
            )


def check_not_empty(rules: int, bounds: Bounds) -> None:
    """Raise WrongField for a policy that sets nothing at all."""
    values = (bounds.max_inferences, bounds.minimum_age)
    if not rules and all(value is None for value in values):
        raise WrongField("rules", "a policy needs at least a rule, a limit or a minimum age")


def is_never_longer(shorter: str, longer: str) -> bool:
    """Return whether a duration is at most as long as another on every day of the calendar."""
    first, second = parse_duration(shorter), parse_duration(longer)
    if first is None or second is None:
        return second is None
    return all(first.before(at) >= second.before(at) for at in _REFERENCES)


_Cutoff = TypeVar("_Cutoff", datetime, UUID)
ErasureScope = Literal["input", "response", "inference"]
"""The datum with the rest of the request, the response blob, or everything."""
SCOPES: Final[Sequence[ErasureScope]] = ("inference", "response", "input")
"""What goes whole comes first: after that no part of it is left to go."""


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

    @property
    def model_id(self) -> str | None:
        """The id of the model, if it is one."""
        return self.subject if self.level == "model" else None

    @property
    def project_id(self) -> str | None:
        """The id of the project, if it is one."""
        return self.subject if self.level == "project" else None

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
    minimum: tuple[Age, ...]
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
    minimum: tuple[Age, ...]

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

    @property
    def filters(self) -> Mapping[str, Predicate]:
        """The filters of its rules, and of what is coming, as they are saved."""
        coming = {} if self.coming is None else self.coming.filters
        own = ((rule.rule.saved, rule.predicate) for rule in self.rules)
        return {**coming, **{saved: filter for saved, filter in own if saved and filter}}

    def find_rule(self, matching: Collection[str]) -> EffectiveRule | None:
        """Return the first rule in force whose filter is among the saved ones that are certainly
        TRUE. None: everything is kept."""
        for rule in self.rules:
            if rule.rule.saved is None or rule.rule.saved in matching:
                return rule
        return None

    def find_cutoffs(self, matching: Collection[str], now: datetime) -> Cutoffs:
        """Return the cutoffs of an inference of which these saved filters are certainly TRUE."""
        rule = self.find_rule(matching)
        cutoffs = KEEP_ALL if rule is None else rule.cutoffs(now)
        if self.coming is None:
            return cutoffs
        return cutoffs.meet(self.coming.find_cutoffs(matching, now))

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
        cutoffs = [cutoff.cutoffs(now) for cutoff in self.rules]
        instants = [at for rule in cutoffs for part in SCOPES if (at := rule.of(part)) is not None]
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
    ages = [policy.minimum_age for _, _, policy in policies if policy.minimum_age is not None]
    durations = dict.fromkeys(map(parse_duration, ages))
    least = tuple(duration for duration in durations if duration is not None)
    return EffectivePolicy(tuple(_iterate_rules(policies, least)), _find_limit(policies, least))


def _iterate_rules(
    policies: Sequence[tuple[PolicyOwner, int, RetentionPolicy]], least: tuple[Age, ...]
) -> Iterable[EffectiveRule]:
    for owner, revision, policy in policies:
        own = () if policy.undercuts_minimum_age else least
        for number, rule in enumerate(policy.rules):
            predicate = None if rule.saved is None else certain.resolve(rule.saved, {})
            yield EffectiveRule(owner, revision, number, rule, predicate, own)
            if predicate is None:
                return


def _find_limit(
    policies: Sequence[tuple[PolicyOwner, int, RetentionPolicy]], least: tuple[Age, ...]
) -> RetentionLimit | None:
    for owner, revision, policy in policies:
        if policy.max_inferences is not None:
            own = () if policy.undercuts_minimum_age else least
            return RetentionLimit(owner, revision, policy.max_inferences, own)
    return None


def _cite(owner: PolicyOwner, revision: int) -> dict[str, Any]:
    return {"level": owner.level, "subject": owner.subject, "version": revision}


def _find_cutoff(keep: str, least: Iterable[datetime], now: datetime) -> datetime | None:
    duration = parse_duration(keep)
    return None if duration is None else min([duration.before(now), *least])
