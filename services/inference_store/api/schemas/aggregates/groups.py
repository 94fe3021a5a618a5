"""By what to group."""

from functools import cache
from typing import Annotated, Any, Self, TypeAlias
from zoneinfo import available_timezones

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, model_validator

from inference_store.api.schemas.fields import Body, Flag
from inference_store.inference.nearest import nearest
from inference_store.query.aggregates import ByHistogram, ByLabel, ByName, ByTime, Grouping
from inference_store.query.aggregates.buckets import PATTERN, width_of

from .named import Bins, Bounds, Named, Of


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


def _as_group(value: Any) -> Any:
    return {"of": value} if isinstance(value, str) else value


Grouped: TypeAlias = Annotated[
    GroupBody, BeforeValidator(_as_group, json_schema_input_type=str | GroupBody)
]
"""A name alone is the group of its values."""
