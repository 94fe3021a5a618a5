"""Names that something is computed of, and bins of numbers."""

from datetime import datetime
from decimal import Decimal
from itertools import pairwise
from typing import Annotated, Any, TypeAlias

from pydantic import AfterValidator, BeforeValidator, Field, Strict, WithJsonSchema

from inference_store.api.schemas.fields import WHOLE, Body, ShortText, exact, instant
from inference_store.query.aggregates import Name

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


def _typed(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


Of: TypeAlias = Annotated[
    TypedName, BeforeValidator(_typed, json_schema_input_type=str | TypedName)
]
