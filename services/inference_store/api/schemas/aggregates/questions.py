"""An aggregate as it is asked."""

from typing import Annotated, Self

from pydantic import ConfigDict, Field, JsonValue, Strict, model_validator

from inference_store.api.schemas.across import Models
from inference_store.api.schemas.fields import WHOLE, ShortText
from inference_store.api.schemas.questions import Conditions
from inference_store.inference.nearest import UnknownName
from inference_store.query.aggregates import Aggregation
from inference_store.query.aggregates.aggregation import MOST_GROUPINGS

from .groups import Grouped
from .measures import MeasureBody

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
        list[Grouped],
        Field(max_length=MOST_GROUPINGS),
    ] = Field(default=[])
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
