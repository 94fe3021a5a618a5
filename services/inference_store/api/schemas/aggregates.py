"""Aggregates: what is asked, and what is answered."""

from decimal import Decimal
from functools import cache
from itertools import pairwise
from typing import Annotated, Any, Self, TypeAlias
from zoneinfo import ZoneInfo, available_timezones

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, JsonValue, model_validator
from rapidfuzz import process

from inference_store.store.aggregates import (
    AGGREGATES,
    Aggregation,
    ByHistogram,
    ByLabel,
    ByName,
    ByTime,
    Grouping,
    Measure,
    Name,
)
from inference_store.store.aggregates.asked import MOST_GROUPINGS, Unit

from .fields import Body, Exact, Flag, ShortText, Shown, Whole
from .questions import Conditions

Named: TypeAlias = Annotated[ShortText, Field(min_length=1)]
_OPTIONS = sorted({option for entry in AGGREGATES.values() for option in entry.options})


def _function(name: str) -> str:
    if name not in AGGREGATES:
        raise ValueError(f"there is no function {name!r}; known are {', '.join(AGGREGATES)}")
    return name


@cache
def _zones() -> frozenset[str]:
    return frozenset(available_timezones())


def _zone(name: str) -> str:
    if name not in _zones():
        near = ", ".join(match for match, _, _ in process.extract(name, sorted(_zones()), limit=3))
        raise ValueError(f"there is no time zone {name!r}; the nearest are {near}")
    ZoneInfo(name)
    return name


def _rising(bounds: list[Decimal]) -> list[Decimal]:
    if any(low >= high for low, high in pairwise(bounds)):
        raise ValueError("each bound is larger than the one before")
    return bounds


Bins: TypeAlias = Annotated[Whole, Field(ge=1, le=1000)]
Bounds: TypeAlias = Annotated[
    list[Exact], Field(min_length=2, max_length=1001), AfterValidator(_rising)
]


Percents: TypeAlias = Annotated[
    list[Annotated[Exact, Field(ge=0, le=100)]], Field(min_length=1, max_length=20)
]


class TypedName(Body):
    """A name, and as which of its types a metadata key is read."""

    name: Named
    """A property (`model_ms`, `inference.model_ms`), a metadata key (`frame_number`,
    `metadata.frame_number`), `label`, or a column of predictions (`prediction.score`)."""
    type: Annotated[str, Field(max_length=32)] | None = None
    """string, int, float, bool or timestamp; left out: the one the key has most often."""

    def asked(self, path: str) -> Name:
        """As the store takes it."""
        return Name(self.name, self.type, path)


def _typed(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


Of: TypeAlias = Annotated[
    TypedName, BeforeValidator(_typed, json_schema_input_type=str | TypedName)
]


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
    """Of `histogram`: where each bin begins, and where the last one ends."""
    limit: Annotated[Whole, Field(ge=1, le=1000)] = 10
    """Of `top` and `distinct`: how many values."""
    prefix: Annotated[ShortText, Field(max_length=100)] = ""
    """Of `distinct`: what the values begin with."""
    expected: Flag = Field(default=True, alias="is")
    """Of `share`: the share of what."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        entry = AGGREGATES[self.function]
        if self.of is None and not entry.without_of:
            raise ValueError(f"{entry.name} is of something: `of` is missing")
        given = {"is" if name == "expected" else name for name in self.model_fields_set}
        for option in _OPTIONS:
            if option in given and option not in entry.options:
                raise ValueError(f"{entry.name} takes no `{option}`")
        return self

    @property
    def name(self) -> str:
        """How the answer calls it."""
        of = "" if self.of is None else f"({self.of.name})"
        return self.called or f"{self.function}{of}"

    def asked(self, path: str) -> Measure:
        """As the store takes it."""
        return Measure(
            function=AGGREGATES[self.function],
            of=None if self.of is None else self.of.asked(f"{path}.of"),
            name=self.name,
            path=path,
            at=tuple(self.at),
            bins=self.bins,
            bounds=None if self.bounds is None else tuple(self.bounds),
            limit=self.limit,
            prefix=self.prefix,
            expected=self.expected,
        )


class HistogramBody(Body):
    """Bins of a number: as many as `bins` says, about, or between `bounds`."""

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
    time: Unit | None = None
    """A group for each span of the calendar in which inferences came in."""
    zone: Annotated[str, Field(max_length=64), AfterValidator(_zone)] = "UTC"
    """The time zone of that calendar."""
    histogram: HistogramBody | None = None
    """A group for each bin of a number."""
    called: Named | None = Field(default=None, alias="as")
    """How the answer calls it; left out: the name, `label` or `time`."""

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        given = (self.of is not None, self.label, self.time is not None, self.histogram is not None)
        if sum(given) != 1:
            raise ValueError("it is one of `of`, `label`, `time` and `histogram`")
        if "zone" in self.model_fields_set and self.time is None:
            raise ValueError("`zone` is of `time`")
        return self

    @property
    def name(self) -> str:
        """How the answer calls it."""
        of = self.of or (self.histogram and self.histogram.of)
        return self.called or (of.name if of else "label" if self.label else "time")

    def asked(self, path: str) -> Grouping:
        """As the store takes it."""
        name, histogram = self.name, self.histogram
        if self.label or (self.of is not None and self.of.name == "label"):
            return ByLabel(name, path)
        if self.time is not None:
            return ByTime(name, path, self.time, self.zone)
        if histogram is None:
            assert self.of is not None
            return ByName(name, path, self.of.asked(path))
        bounds = None if histogram.bounds is None else tuple(histogram.bounds)
        of = histogram.of.asked(f"{path}.histogram.of")
        return ByHistogram(name, path, of, histogram.bins, bounds)


def _group(value: Any) -> Any:
    return {"of": value} if isinstance(value, str) else value


_EXAMPLES: list[JsonValue] = [
    {
        "received_at": {"from": "2026-11-01T00:00:00Z"},
        "measures": [
            {"function": "count"},
            {"function": "share", "of": "ok", "is": False, "as": "errors"},
            {"function": "percentiles", "of": "model_ms", "at": [50, 95, 99]},
        ],
        "group_by": [{"time": "hour", "zone": "Europe/Berlin"}],
    },
    {"measures": [{"function": "distinct", "of": "data_source", "prefix": "hall"}]},
]


class InferenceAggregate(Conditions):
    """Measures of the inferences that satisfy every condition, by groups."""

    model_config = ConfigDict(json_schema_extra={"examples": _EXAMPLES})

    measures: Annotated[list[MeasureBody], Field(min_length=1, max_length=20)] = Field(
        default=[MeasureBody(function="count")]
    )
    """What is computed of each group."""
    group_by: Annotated[
        list[Annotated[GroupBody, BeforeValidator(_group, json_schema_input_type=str | GroupBody)]],
        Field(max_length=MOST_GROUPINGS),
    ] = Field(default=[])
    """By what; a name alone is `{"of": name}`. None: one group of all."""
    limit: Annotated[Whole, Field(ge=1, le=10_000)] = 100
    """Most groups of the answer; `others` says what is left."""
    order: Annotated[ShortText, Field(examples=["-count"])] | None = None
    """A name of the answer, `-` for the largest first. Left out: spans of time and bins in their
    order, other groups by their inferences, the most first."""

    @model_validator(mode="after")
    def _is_told_apart(self) -> Self:
        names = [*(each.name for each in self.group_by), *(each.name for each in self.measures)]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"{twice[0]!r} is there twice: call one of them otherwise (`as`)")
        if self.order is not None and self.order.removeprefix("-") not in names:
            raise ValueError(f"order: there is no {self.order!r}; known are {', '.join(names)}")
        return self

    def aggregation(self) -> Aggregation:
        """As the store takes it, beside `question`."""
        return Aggregation(
            measures=tuple(m.asked(f"measures[{n}]") for n, m in enumerate(self.measures)),
            group_by=tuple(g.asked(f"group_by[{n}]") for n, g in enumerate(self.group_by)),
            limit=self.limit,
            order=self.order,
        )


class AggregateAcross(InferenceAggregate):
    """The same across models: all that the caller may read, or fewer."""

    project_id: ShortText | None = None
    """Only the models of this project."""
    model_ids: Annotated[list[ShortText], Field(min_length=1, max_length=1000)] | None = None
    """Only these models."""


class ShownGroup(Shown):
    """A group. `key`: what it was grouped by, null where there is no value."""

    key: dict[str, Any] = Field(examples=[{"time": "2026-11-01T00:00:00.000000Z"}])
    measures: dict[str, Any] = Field(examples=[{"count": 17, "mean(model_ms)": 12.5}])


class ShownOthers(Shown):
    """What `limit` left out."""

    groups: int
    inferences: int
    """An inference in several groups is counted in each."""


class ShownAggregate(Shown):
    """Measures by groups."""

    groups: list[ShownGroup]
    others: ShownOthers
    approximate: bool
    """Whether some percentiles are not exact; each says it itself. All else always is exact."""
    warnings: list[str]
