"""What is computed of each group."""

from decimal import Decimal
from typing import Annotated, Self, TypeAlias

from pydantic import AfterValidator, ConfigDict, Field, Strict, model_validator

from inference_store.api.schemas.fields import WHOLE, Body, Exact, Flag, ShortText
from inference_store.inference.nearest import UnknownName
from inference_store.query.aggregates import AGGREGATES, Measure
from inference_store.query.aggregates.functions import nearest_of

from .named import Bins, Bounds, Named, Of

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
