"""Counts, sums, percentiles and histograms of inferences, by groups."""

from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal
from functools import cache
from itertools import pairwise
from typing import Annotated, Any, Self, TypeAlias
from zoneinfo import available_timezones

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    Strict,
    WithJsonSchema,
    model_validator,
)
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.access.rights import Right
from inference_store.index.registrations import Registration
from inference_store.inference.nearest import UnknownName, nearest
from inference_store.query.aggregates import (
    AGGREGATES,
    Aggregation,
    ByHistogram,
    ByLabel,
    ByName,
    ByTime,
    Grouping,
    Measure,
    Name,
    aggregate,
    build_targets,
)
from inference_store.query.aggregates.aggregation import MOST_GROUPINGS, nearest_of
from inference_store.query.aggregates.bins import PATTERN, width_of
from inference_store.query.explain import recording

from .access import Access, Asking, Needs, Over
from .answer import Answer, Shown
from .conditions import Conditions, Models, choose_models, read_requested_filter
from .dependencies import Querying
from .fields import WHOLE, Body, Exact, Flag, ShortText, exact, instant
from .http import INFERENCES, ModelId
from .inference_models import Explained
from .inference_pages import explain, limit_query_time, set_deadline
from .routing import Router

Named: TypeAlias = Annotated[ShortText, Field(min_length=1)]


def _bound(value: Any) -> Decimal | datetime:
    bound: Decimal | datetime = instant(value) if isinstance(value, str) else exact(value)
    return bound


def _rising(bounds: list[Any]) -> list[Any]:
    if len({isinstance(bound, datetime) for bound in bounds}) > 1:
        raise ValueError("bounds are numbers, or instants, and not both")
    if any(low >= high for low, high in pairwise(bounds)):
        raise ValueError("each bound is larger than the one before")
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

    def to_name(self, path: str) -> Name:
        """Return it as the store takes it."""
        return Name(self.name, self.type, path)


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
        near = ", ".join(nearest(name, sorted(_zones()), limit=3))
        hint = f"; the nearest are {near}" if near else ""
        raise ValueError(f"there is no time zone {name!r}{hint}")
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
            raise ValueError("it is one of `of`, `label`, `time` and `histogram`")
        if "zone" in self.model_fields_set and self.time is None:
            raise ValueError("`zone` is of `time`")
        return self

    @property
    def name(self) -> str:
        """How the answer calls it."""
        of = self.of or (self.histogram and self.histogram.of)
        return self.called or (of.name if of else "label" if self.label else "time")

    def to_grouping(self, path: str) -> Grouping:
        """Return it as the store takes it."""
        name, histogram = self.name, self.histogram
        if self.label or (self.of is not None and self.of.name == "label"):
            return ByLabel(name, path)
        if self.time is not None:
            return ByTime(name, path, self.time, self.zone)
        if histogram is None:
            assert self.of is not None
            return ByName(name, path, self.of.to_name(path))
        bounds = None if histogram.bounds is None else tuple(histogram.bounds)
        of = histogram.of.to_name(f"{path}.histogram.of")
        return ByHistogram(name, path, of, histogram.bins, bounds)


Grouped: TypeAlias = Annotated[GroupBody, _name_it("of", GroupBody)]
"""A name alone is the group of its values."""


_OPTIONS = sorted({option for entry in AGGREGATES.values() for option in entry.options})

Percents: TypeAlias = Annotated[
    list[Annotated[Exact, Field(ge=0, le=100)]], Field(min_length=1, max_length=20)
]


def _function(name: str) -> str:
    if name not in AGGREGATES:
        raise UnknownName("there is no function", name, list(AGGREGATES), near=nearest_of(name))
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
        entry = AGGREGATES[self.function]
        if self.of is None and not entry.without_of:
            raise ValueError(f"{entry.name} is of something: `of` is missing")
        options = {"is" if name == "expected" else name for name in self.model_fields_set}
        for option in _OPTIONS:
            if option in options and option not in entry.options:
                raise ValueError(f"{entry.name} takes no `{option}`")
        return self

    @property
    def name(self) -> str:
        """How the answer calls it."""
        of = "" if self.of is None else f"({self.of.name})"
        return self.called or f"{self.function}{of}"

    def to_measure(self, path: str) -> Measure:
        """Return it as the store takes it."""
        return Measure(
            function=AGGREGATES[self.function],
            of=None if self.of is None else self.of.to_name(f"{path}.of"),
            name=self.name,
            path=path,
            at=tuple(self.at),
            bins=self.bins,
            bounds=None if self.bounds is None else tuple(self.bounds),
            limit=self.limit,
            prefix=self.prefix,
            expected=self.expected,
        )


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
            raise ValueError(f"{twice[0]!r} is there twice: call one of them otherwise (`as`)")
        if self.order is not None and self.order.removeprefix("-") not in names:
            raise UnknownName("order: there is no", self.order.removeprefix("-"), names)
        return self

    def aggregation(self) -> Aggregation:
        """Return it as the store takes it, beside `question`."""
        return Aggregation(
            measures=tuple(m.to_measure(f"measures[{n}]") for n, m in enumerate(self.measures)),
            group_by=tuple(g.to_grouping(f"group_by[{n}]") for n, g in enumerate(self.group_by)),
            limit=self.limit,
            order=self.order,
        )


class AggregateAcross(Models, InferenceAggregate):
    """The same across models: all that the caller may read, or fewer."""


class ShownGroup(Shown):
    """A group. `key`: what it was grouped by, null where there is no value."""

    key: dict[str, Any] = Field(examples=[{"time": "2026-11-01T00:00:00.000000Z"}])
    measures: dict[str, Any] = Field(examples=[{"count": 17, "mean(model_ms)": 12.5}])


class OmittedGroups(Shown):
    """What `limit` left out."""

    groups: int
    inferences: int
    """An inference in several groups is counted in each."""


class ShownAggregate(Explained):
    """Measures by groups."""

    groups: list[ShownGroup]
    others: OmittedGroups
    approximate: bool
    """Whether some percentiles are not exact; each says it itself. All else always is exact."""
    warnings: Sequence[str]


router = Router("inferences")
_NARROW = (
    "The aggregate took too long: narrow received_at, add a condition that fewer match, or ask"
    " for fewer measures at once. Counts by one metadata key or by time are the fastest."
)


@router.add(f"POST {INFERENCES}/aggregate", ShownAggregate, Right.READ, "Aggregate inferences", 501)
async def aggregate_inferences(
    model_id: ModelId, body: InferenceAggregate, connection: Querying, access: Asking
) -> Answer:
    """Measures of the inferences that satisfy every condition, by groups."""
    model = await access.find_model(connection, model_id)
    return await _answer_aggregate(connection, access, [model], body)


@router.add(
    "POST /inferences/aggregate",
    ShownAggregate,
    Needs(Right.READ, Over.SOME),
    "Aggregate inferences across models",
    404,
    501,
)
async def aggregate_across(body: AggregateAcross, connection: Querying, access: Asking) -> Answer:
    """The same across models: those of a project, those named, or all that you may read."""
    models = await choose_models(connection, access, body)
    return await _answer_aggregate(connection, access, models, body)


async def _answer_aggregate(
    connection: AsyncConnection,
    access: Access,
    models: Sequence[Registration],
    body: InferenceAggregate,
) -> Answer:
    filter = await read_requested_filter(body.filter, body.filter_lang)
    targets, prepared = await build_targets(connection, models, body.to_query_request(filter.tree))
    with recording(body.explain) as recorded:
        with limit_query_time("aggregate", _NARROW, prepared.query):
            result = await aggregate(
                connection,
                targets,
                body.aggregation(),
                deadline=set_deadline(body, access.settings),
                unknown_keys=body.unknown_keys,
            )
        explanation = await explain(connection, access, prepared.query, recorded)
    warnings = [*prepared.warnings, *result.warnings]
    return Answer(
        ShownAggregate.show(result, warnings=warnings, **filter.answer_members, **explanation)
    )
