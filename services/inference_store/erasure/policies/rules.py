"""A retention policy: rules, each with its three ages, and what bounds them.

Ages count from `received_at`, and apply to what is stored already as to what still comes. They are
ISO 8601 durations, or `forever`. Weeks and shorter units are exact. Months and years go by the
calendar, in UTC, and end on the month's last day if the day does not exist (a month before March 31
is February 28 or 29).
"""

from calendar import monthrange
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Annotated, Any, Final, Self

from pydantic import AfterValidator, ConfigDict, Field, model_validator

from inference_store.inference.events.event import LOWEST
from inference_store.inference.field_docs import DocumentedModel
from inference_store.inference.iso_durations import read_parts
from inference_store.inference.json_text import storable

FOREVER = "forever"


@dataclass(frozen=True, slots=True)
class Duration:
    """Months by the calendar, and an exact time."""

    months: int
    exact: timedelta

    def before(self, now: datetime) -> datetime:
        """Return the instant that long ago; never before 2000, when no inference was received."""
        years, month = divmod(now.year * 12 + now.month - 1 - self.months, 12)
        if years < LOWEST.year:
            return LOWEST
        day = min(now.day, monthrange(years, month + 1)[1])
        try:
            return max(now.replace(year=years, month=month + 1, day=day) - self.exact, LOWEST)
        except OverflowError:
            return LOWEST

    def after(self, at: datetime) -> datetime | None:
        """Return the first instant at which `at` was that long ago; None: beyond the calendar."""
        years, month = divmod(at.year * 12 + at.month - 1 + self.months, 12)
        try:
            first = at.replace(year=years, month=month + 1, day=1) + self.exact
            estimate = first + timedelta(days=at.day - 1)
            # the day may not exist there: months end on other days, by three at most
            days = (estimate + timedelta(days=n) for n in range(-4, 5))
            return next((day for day in days if self.before(day) >= at), None)
        except (OverflowError, ValueError):
            return None


@lru_cache(maxsize=1024)
def parse_duration(text: str) -> Duration | None:
    """Return a duration; None for `forever`. Raises ValueError for any other text."""
    if text == FOREVER:
        return None
    parts = read_parts(text)
    if parts is None:
        raise ValueError(
            f"{text[:64]!r} is neither an ISO 8601 duration (like P30D, PT12H or P1Y6M)"
            " nor 'forever'"
        )
    years, months, exact = parts
    return Duration(years * 12 + months, exact)


MOST_RULES: Final = 32
# Every day of a leap cycle: a duration that is shorter on all of them is shorter.
_REFERENCES = tuple(datetime(2096, 2, 1, tzinfo=UTC) + timedelta(days=n) for n in range(0, 1461))


def _check_duration(text: str) -> str:
    parse_duration(text)
    return text


def _check_finite(text: str) -> str:
    if parse_duration(text) is None:
        raise ValueError("a minimum age is a duration; `forever` is for rules")
    return text


def _check_storable(text: str) -> str:
    if not storable(text):
        raise ValueError("it holds NUL or a lone surrogate: leave that out")
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
Name = Annotated[str, Field(max_length=256), AfterValidator(_check_storable)]


class Ages(DocumentedModel):
    """The ages to which a rule keeps the request with its datum, the response, and everything."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Name | None = None
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
                raise ValueError(
                    f"{part} ({age}) must not be longer than keep_inference"
                    f" ({self.keep_inference}), on any day of the calendar"
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
    """The filter, resolved: query/filters/saved.py. None: the rule is of everything."""


class Bounds(DocumentedModel):
    """The limits and the minimum age of a policy."""

    model_config = ConfigDict(extra="forbid", frozen=True)

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
    """Raise ValueError if one of the rules, as (name, has a filter), could never apply."""
    names: set[str] = set()
    for number, (name, has_filter) in enumerate(rules):
        if name is not None and name in names:
            raise ValueError(f"two rules are named {name!r}")
        names |= {name} if name is not None else set()
        if not has_filter and number + 1 < len(rules):
            raise ValueError(
                f"rules[{number}] has no filter, so it is of everything, and the rules after it"
                " could never apply: put it last, or give it a filter"
            )


def check_not_empty(rules: int, bounds: Bounds) -> None:
    """Raise ValueError for a policy that sets nothing at all."""
    values = (bounds.max_inferences, bounds.minimum_age)
    if not rules and all(value is None for value in values):
        raise ValueError("a policy has a rule, a limit or a minimum age at least")


def is_never_longer(shorter: str, longer: str) -> bool:
    """Return whether a duration is at most as long as another on every day of the calendar."""
    first, second = parse_duration(shorter), parse_duration(longer)
    if first is None or second is None:
        return second is None
    return all(first.before(at) >= second.before(at) for at in _REFERENCES)


def dump_policy(policy: RetentionPolicy) -> dict[str, Any]:
    """Return a policy as JSON, without the members that are not set."""
    return policy.model_dump(exclude_none=True, exclude_defaults=False)
