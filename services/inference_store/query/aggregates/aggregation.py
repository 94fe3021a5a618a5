"""The request for an aggregation: its functions, measures and groups, and what its names mean."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from functools import cache
from itertools import pairwise
from typing import Annotated, Any, Final, Literal, Self, TypeAlias
from zoneinfo import available_timezones

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    Strict,
    WithJsonSchema,
    model_validator,
)

from inference_store.inference.field_docs import (
    WHOLE,
    Body,
    Exact,
    Flag,
    ShortText,
    WrongField,
    exact,
    instant,
)
from inference_store.inference.nearest import UnknownName, describe_alike, nearest
from inference_store.query.filters.typed import Kind

from .bins import PATTERN, width_of

Needs: TypeAlias = Literal["sums", "values", "bins", "percentiles"]
Sum: TypeAlias = Literal["number", "low", "high", "squares", "total", "true", "bytes"]
"""What is added up of values; `true`: how many are; `bytes`: all of them, one after the other."""
SUMMED: Final = frozenset({"sums", "percentiles"})
_ALL: Final[frozenset[Kind]] = frozenset({"number", "string", "bool", "timestamp"})
ORDERED: Final[frozenset[Kind]] = frozenset({"number", "string", "timestamp"})
_BINNED: Final[frozenset[Kind]] = frozenset({"number", "timestamp"})
_NUMBER: Final[frozenset[Kind]] = frozenset({"number"})
_BOOL: Final[frozenset[Kind]] = frozenset({"bool"})


@dataclass(frozen=True, slots=True)
class Aggregate:
    """One function. `kinds`: the kinds allowed for `of`; `options`: its own fields of a measure."""

    name: str
    meaning: str
    kinds: frozenset[Kind]
    needs: Needs
    sums: tuple[Sum, ...] = ()
    options: tuple[str, ...] = ()
    elsewhere: tuple[str, ...] = ()
    """Its names in other systems: an error suggests the function for them."""


# fmt: off
AGGREGATES: Final[Mapping[str, Aggregate]] = {entry.name: entry for entry in (
    Aggregate("count", "how many inferences; with `of`: how many values it has",
              _ALL, "sums", elsewhere=("size", "n")),
    Aggregate("min", "the smallest value, the earliest, the first in code-point order",
              ORDERED, "sums", ("low",), elsewhere=("minimum", "first", "earliest")),
    Aggregate("max", "the largest value, the latest, the last in code-point order",
              ORDERED, "sums", ("high",), elsewhere=("maximum", "last", "latest")),
    Aggregate("sum", "the exact sum; null of no values", _NUMBER, "sums", ("total",),
              elsewhere=("total",)),
    Aggregate("mean", "the exact sum by the number of values, to 34 digits; null of no values",
              _NUMBER, "sums", ("total",), elsewhere=("avg", "average")),
    Aggregate("variance", "the variance of a sample (the sum of squared distances from the mean, by"
              " one less than the number of values), to 34 digits; null of fewer than two",
              _NUMBER, "sums", ("total", "squares"), elsewhere=("var", "var_samp")),
    Aggregate("stddev", "the standard deviation of a sample: the variance's root, to 34 digits",
              _NUMBER, "sums", ("total", "squares"), elsewhere=("std", "stddev_samp")),
    Aggregate("share", "the share of values that are true, or what `is` says; null of no values",
              _BOOL, "sums", ("true",), ("is",), elsewhere=("ratio", "rate", "fraction")),
    Aggregate("percentiles", "for each of `at`: the smallest value that so many per cent of the"
              " values do not exceed", _NUMBER, "percentiles", ("low", "high"), ("at",),
              elsewhere=("median", "quantile", "quantiles", "p50", "p90", "p95", "p99")),
    Aggregate("histogram", "how many values lie between given `bounds`, or between bounds made"
              " of about so many `bins`", _BINNED, "bins", ("low", "high"),
              ("bins", "bounds"), elsewhere=("hist", "buckets")),
    Aggregate("top", "the `limit` most frequent values with their counts, and `others`",
              _ALL, "values", options=("limit",), elsewhere=("mode", "terms", "frequencies")),
    Aggregate("distinct", "the first `limit` different values that begin with `prefix`, in order",
              ORDERED, "values", options=("limit", "prefix"), elsewhere=("unique", "values")),
)}
# fmt: on


Named: TypeAlias = Annotated[ShortText, Field(min_length=1)]


def _bound(value: Any) -> Decimal | datetime:
    is_time = isinstance(value, str | datetime)
    bound: Decimal | datetime = instant(value) if is_time else exact(value)
    return bound


def _rising(bounds: list[Any]) -> list[Any]:
    if len({isinstance(bound, datetime) for bound in bounds}) > 1:
        raise ValueError("all must be numbers, or all must be times")
    if any(low >= high for low, high in pairwise(bounds)):
        raise ValueError("each must be larger than the one before")
    return bounds


Bins: TypeAlias = Annotated[int, Strict(), Field(ge=1, le=1000), WHOLE]
Bound: TypeAlias = Annotated[
    Decimal | datetime,
    BeforeValidator(_bound),
    WithJsonSchema({"anyOf": [{"type": "number"}, {"type": "string", "format": "date-time"}]}),
]
Bounds: TypeAlias = Annotated[
    list[Bound],
    Field(min_length=2, max_length=1001, examples=[[0, 0.5, 1]]),
    AfterValidator(_rising),
]


class TypedName(Body):
    """A name, and as which of its types a metadata key is read."""

    name: Named
    """A property (`model_ms`, `inference.model_ms`), a metadata key (`frame_number`,
    `metadata.frame_number`), `label`, or a column of predictions (`prediction.score`)."""
    type: Annotated[str, Field(max_length=32)] | None = None
    """string, int, float, bool or timestamp; left out: the one the key has most often."""


def _name_it(member: str, kind: type[Body]) -> BeforeValidator:
    """A text alone is the body that has it as this member."""

    def name_it(value: Any) -> Any:
        return {member: value} if isinstance(value, str) else value

    return BeforeValidator(name_it, json_schema_input_type=str | kind)


Of: TypeAlias = Annotated[TypedName, _name_it("name", TypedName)]


@cache
def _zones() -> frozenset[str]:
    return frozenset(available_timezones())


def _zone(name: str) -> str:
    if name not in _zones():
        near = nearest(name, sorted(_zones()), limit=3)
        raise ValueError(f"there is no time zone {name!r}; {describe_alike(near)}")
    return name


def _span(text: str) -> str:
    width_of(text)
    return text


Span: TypeAlias = Annotated[
    str, Field(max_length=16, json_schema_extra={"pattern": PATTERN}), AfterValidator(_span)
]


class HistogramBody(Body):
    """Bins of a number or a timestamp: as many as `bins` says, about, or between `bounds`."""

    of: Of
    bins: Bins = 20
    bounds: Bounds | None = None


class GroupBody(Body):
    """By what to group: one of `of`, `label`, `time` and `histogram`."""

    model_config = ConfigDict(populate_by_name=True)

    of: Of | None = None
    """A property or a metadata key: a group for each value."""
    label: Flag = False
    """A group for each label of the inference's predictions."""
    time: Span | None = Field(default=None, examples=["hour", "PT15M"])
    """A group for each span of time in which inferences came in: minute, hour, day, week or month
    of the calendar, or an ISO 8601 duration of one unit (`PT15M`, `PT6H`, `P2W`, `P3M`)."""
    zone: Annotated[str, Field(max_length=64), AfterValidator(_zone)] = "UTC"
    """The time zone of that calendar."""
    histogram: HistogramBody | None = None
    """A group for each bin of a number or a timestamp."""
    called: Named | None = Field(default=None, alias="as")
    """How the answer calls it; left out: the name, `label` or `time`."""

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        choices = (
            self.of is not None,
            self.label,
            self.time is not None,
            self.histogram is not None,
        )
        if sum(choices) != 1:
            raise ValueError("give exactly one of `of`, `label`, `time` and `histogram`")
        if "zone" in self.model_fields_set and self.time is None:
            raise WrongField("zone", "it applies to groups by `time` alone")
        return self

    @property
    def name(self) -> str:
        """How the answer calls it."""
        of = self.of or (self.histogram and self.histogram.of)
        return self.called or (of.name if of else "label" if self.label else "time")

    @property
    def is_label(self) -> bool:
        """Check whether it groups by the labels of predictions."""
        return self.label or (self.of is not None and self.of.name == "label")


Grouped: TypeAlias = Annotated[GroupBody, _name_it("of", GroupBody)]
"""A name alone is the group of its values."""


_OPTIONS = sorted({option for entry in AGGREGATES.values() for option in entry.options})

Percents: TypeAlias = Annotated[
    list[Annotated[Exact, Field(ge=0, le=100)]], Field(min_length=1, max_length=20)
]


def _function(name: str) -> str:
    if name not in AGGREGATES:
        meant = [entry.name for entry in AGGREGATES.values() if name.lower() in entry.elsewhere]
        near = meant or nearest(name, AGGREGATES)
        raise UnknownName("there is no function", name, list(AGGREGATES), near=near)
    return name


class MeasureBody(Body):
    """One function of one name."""

    model_config = ConfigDict(populate_by_name=True)

    function: Annotated[
        str,
        Field(
            max_length=32,
            description="; ".join(f"`{a.name}`: {a.meaning}" for a in AGGREGATES.values()) + ".",
            examples=["mean"],
            json_schema_extra={"enum": list(AGGREGATES)},
        ),
        AfterValidator(_function),
    ]
    of: Of | None = Field(default=None, examples=["model_ms"])
    """Of what: a property, a metadata key, `label` or `prediction.<column>`."""
    called: Named | None = Field(default=None, alias="as", examples=["latency"])
    """How the answer calls it; left out: `mean(model_ms)`."""
    at: Percents = Field(default=[Decimal(50), Decimal(90), Decimal(95), Decimal(99)])
    """Of `percentiles`: which."""
    bins: Bins = 20
    """Of `histogram`: about how many."""
    bounds: Bounds | None = None
    """Of `histogram`: where each bin begins, and where the last one ends; of timestamps as RFC 3339
    writes them."""
    limit: Annotated[int, Strict(), Field(ge=1, le=1000), WHOLE] = 10
    """Of `top` and `distinct`: how many values."""
    prefix: Annotated[ShortText, Field(max_length=100)] = ""
    """Of `distinct`: what the values begin with."""
    expected: Flag = Field(default=True, alias="is")
    """Of `share`: the share of what."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        entry = self.aggregate
        if self.of is None and self.function != "count":
            raise WrongField("of", f"it is required by {entry.name}")
        options = {"is" if name == "expected" else name for name in self.model_fields_set}
        for option in _OPTIONS:
            if option in options and option not in entry.options:
                raise WrongField(option, f"{entry.name} does not take it")
        return self

    @property
    def aggregate(self) -> Aggregate:
        """The function."""
        return AGGREGATES[self.function]

    @property
    def name(self) -> str:
        """How the answer calls it."""
        of = "" if self.of is None else f"({self.of.name})"
        return self.called or f"{self.function}{of}"


Measured: TypeAlias = Annotated[MeasureBody, _name_it("function", MeasureBody)]
MOST_GROUPINGS = 3


class Aggregation(Body):
    """The measures of the matching inferences."""

    measures: Annotated[list[Measured], Field(min_length=1, max_length=20)] = Field(
        default=[MeasureBody(function="count")]
    )
    """What is computed of each group; a name alone is `{"function": name}`."""
    group_by: Annotated[list[Grouped], Field(max_length=MOST_GROUPINGS)] = Field(default=[])
    """By what; a name alone is `{"of": name}`. None: one group of all."""
    limit: Annotated[int, Strict(), Field(ge=1, le=10_000), WHOLE] = 100
    """Most groups of the answer; `others` says what is left."""
    order: Annotated[ShortText, Field(examples=["-count"])] | None = None
    """A name of the answer, `-` for the largest first. Left out: spans of time and bins in their
    order, other groups by their inferences, the most first."""

    @model_validator(mode="after")
    def _has_distinct_names(self) -> Self:
        names = [*(item.name for item in self.group_by), *(item.name for item in self.measures)]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            wrong = "measures" if twice[0] in {item.name for item in self.measures} else "group_by"
            raise WrongField(wrong, f"{twice[0]!r} appears twice: rename one of them with `as`")
        if self.order is not None and self.order.removeprefix("-") not in names:
            raise UnknownName("there is no", self.order.removeprefix("-"), names, field="order")
        return self
