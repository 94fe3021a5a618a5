"""A retention policy: rules, each with its three ages, and what bounds them.

Ages count from `received_at`, and apply to what is stored already as to what still comes.
"""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final, Self

from pydantic import AfterValidator, ConfigDict, Field, model_validator

from inference_store.erasure.policies.durations import FOREVER, parse_duration
from inference_store.inference.documented import Documented
from inference_store.inference.json_text import storable

MOST_RULES: Final = 32
# Every day of a leap cycle: what is shorter on all of them is shorter.
_REFERENCES = tuple(datetime(2096, 2, 1, tzinfo=UTC) + timedelta(days=n) for n in range(0, 1461))


def _checked(text: str) -> str:
    parse_duration(text)
    return text


def _finite(text: str) -> str:
    if parse_duration(text) is None:
        raise ValueError("a minimum age is a duration; `forever` is said by the rules")
    return text


def _storable(text: str) -> str:
    if not storable(text):
        raise ValueError("it holds NUL or a lone surrogate: leave that out")
    return text


Keep = Annotated[
    str,
    AfterValidator(_checked),
    Field(
        max_length=64,
        description="An ISO 8601 duration (days and below exact, months and years by the"
        " calendar, UTC) or `forever`.",
        examples=["P30D", "P1Y", "PT12H", "forever"],
    ),
]
Count = Annotated[int, Field(strict=True, ge=1, le=2**62)]
Name = Annotated[str, Field(max_length=256), AfterValidator(_storable)]


class Ages(Documented):
    """How long a rule keeps the datum with the rest of the request, the response, everything."""

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
            kept = getattr(self, part)
            if kept is not None and not never_longer(kept, self.keep_inference):
                raise ValueError(
                    f"{part} ({kept}) must not be longer than keep_inference"
                    f" ({self.keep_inference}), on any day of the calendar"
                )
        return self

    @property
    def input(self) -> str:
        """How long the input is kept."""
        return self.keep_input or self.keep_inference

    @property
    def response(self) -> str:
        """How long the response is kept."""
        return self.keep_response or self.keep_inference


class Rule(Ages):
    """A rule as it is kept."""

    filter: str | None = None
    """CQL2-Text, for people."""
    saved: str | None = None
    """The filter, resolved: query/filters/saved.py. None: the rule is of everything."""


class Bounds(Documented):
    """What a policy says beside its rules."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_inferences: Count | None = None
    """Of each model at most so many inferences are kept; the oldest go first."""
    max_bytes: Count | None = None
    """Of each model at most so many bytes of objects are kept; the oldest inferences go first."""
    minimum_age: (
        Annotated[
            str,
            AfterValidator(_finite),
            Field(max_length=64, description="An ISO 8601 duration.", examples=["P7D"]),
        ]
        | None
    ) = None
    """No rule and no limit, of this policy or another, takes what is younger."""
    undercuts_minimum_age: Annotated[bool, Field(strict=True)] = False
    """This policy's own rules and limits go against the minimum age: needs `override`."""


class RetentionPolicy(Bounds):
    """A policy as it is kept."""

    rules: tuple[Rule, ...] = ()

    @model_validator(mode="after")
    def _makes_sense(self) -> Self:
        check_rules([(rule.name, rule.saved is not None) for rule in self.rules])
        check_says_something(len(self.rules), self)
        return self


def check_rules(rules: Sequence[tuple[str | None, bool]]) -> None:
    """Raise ValueError for rules, as (name, has a filter), of which one could never apply."""
    seen: set[str] = set()
    for place, (name, filtered) in enumerate(rules):
        if name is not None and name in seen:
            raise ValueError(f"two rules are named {name!r}")
        seen |= {name} if name is not None else set()
        if not filtered and place + 1 < len(rules):
            raise ValueError(
                f"rules[{place}] has no filter, so it is of everything, and the rules after it"
                " could never apply: put it last, or give it a filter"
            )


def check_says_something(rules: int, bounds: Bounds) -> None:
    """Raise ValueError for a policy that says nothing at all."""
    said = (bounds.max_inferences, bounds.max_bytes, bounds.minimum_age)
    if not rules and all(each is None for each in said):
        raise ValueError("a policy has a rule, a limit or a minimum age at least")


def never_longer(shorter: str, longer: str) -> bool:
    """Whether a duration is at most as long as another on every day of the calendar."""
    first, second = parse_duration(shorter), parse_duration(longer)
    if first is None or second is None:
        return second is None
    return all(first.before(at) >= second.before(at) for at in _REFERENCES)


def document_of(policy: RetentionPolicy) -> dict[str, Any]:
    """A policy as JSON, without what it does not say."""
    return policy.model_dump(exclude_none=True, exclude_defaults=False)


__all__ = [
    "FOREVER",
    "MOST_RULES",
    "Ages",
    "Bounds",
    "Keep",
    "RetentionPolicy",
    "Rule",
    "check_rules",
    "check_says_something",
    "document_of",
    "never_longer",
]
