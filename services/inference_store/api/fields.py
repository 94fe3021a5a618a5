"""Kinds of fields that several bodies share. Nothing is guessed: `"5"` is no number."""

from datetime import datetime
from decimal import Decimal
from typing import Annotated, Any, Final, Self, TypeAlias

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    Strict,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from inference_store.inference.field_docs import DocumentedModel
from inference_store.inference.json_text import storable
from inference_store.inference.metadata import MetadataCaps
from inference_store.inference.metadata.values import read_timestamp

_MOST_FIELDS = 100


class Body(DocumentedModel):
    """A body of a request: unknown fields are refused by name."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _few_fields(cls, value: Any) -> Any:
        # Each unknown one would be a fault of its own, and costs more than reading it.
        if isinstance(value, dict) and len(value) > _MOST_FIELDS:
            raise ValueError(f"an object here has at most {_MOST_FIELDS} fields")
        return value


def _whole(value: Any) -> Any:
    """A number without a fraction, as an int; JSON does not tell 5.0 from 5."""
    if isinstance(value, Decimal) and value.is_finite() and value.adjusted() < 20:
        return int(value) if value == value.to_integral_value() else value
    return value


def _number(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, (int, float, Decimal)):
        raise ValueError("it is a number")
    number = float(value)
    if number in (float("inf"), float("-inf")):
        raise ValueError("it is a finite number")
    return number


def exact(value: Any) -> Any:
    """The exact number. Raises ValueError for what is none, or too large."""
    if isinstance(value, bool) or not isinstance(value, (int, float, Decimal)):
        raise ValueError("it is a number")
    number = value if isinstance(value, Decimal) else Decimal(str(value))
    if (
        not number.is_finite()
        or abs(number.adjusted()) > 400
        or len(number.as_tuple().digits) > 1000
    ):
        raise ValueError("it has up to 1,000 digits and an exponent up to 400")
    return number


def instant(value: Any) -> Any:
    """The instant. Raises ValueError for what is none."""
    if isinstance(value, datetime):
        return value
    parsed = read_timestamp(value, MetadataCaps())[0] if isinstance(value, str) else None
    if parsed is None:
        raise ValueError("it is an instant as RFC 3339 writes it: 2026-11-01T00:00:00Z")
    return parsed


def storable_text(value: str) -> str:
    """The text itself. Raises ValueError where Postgres cannot hold it."""
    if not storable(value):
        raise ValueError("it holds NUL or a lone surrogate")
    return value


# Bounds stand before these: after them pydantic leaves `minimum` and `maximum` out of the OpenAPI.
WHOLE: Final = BeforeValidator(_whole)
FINITE: Final = BeforeValidator(_number)
Whole: TypeAlias = Annotated[int, Strict(), WHOLE]
Number: TypeAlias = Annotated[float, FINITE]
Exact: TypeAlias = Annotated[Decimal, BeforeValidator(exact), WithJsonSchema({"type": "number"})]
Flag: TypeAlias = Annotated[bool, Strict()]
Instant: TypeAlias = Annotated[datetime, BeforeValidator(instant)]
Text: TypeAlias = Annotated[str, AfterValidator(storable_text)]
ShortText: TypeAlias = Annotated[str, Field(max_length=256), AfterValidator(storable_text)]


def _not_relative(value: Any) -> Any:
    if isinstance(value, str) and "now" in value.lower():
        raise ValueError(
            "a relative time stands in `filter`: received_at >= now() - duration('PT1H')"
        )
    return value


Received: TypeAlias = Annotated[Instant, BeforeValidator(_not_relative)]
"""A bound of when the request came in."""


def refuse_no_time(until: datetime | None, since: datetime | None) -> datetime | None:
    """The end of a half-open span. Raises ValueError where nothing lies in it."""
    if since is not None and until is not None and not since < until:
        raise ValueError(f"it must be later than {since.isoformat()}")
    return until


class Window(Body):
    """A half-open span of time: `from` is in it, `to` is not."""

    model_config = ConfigDict(populate_by_name=True)

    since: Received | None = Field(default=None, alias="from", examples=["2026-11-01T00:00:00Z"])
    until: Received | None = Field(default=None, alias="to", examples=["2026-12-01T00:00:00Z"])

    @field_validator("until")
    @classmethod
    def _holds_some_time(cls, until: datetime | None, info: ValidationInfo) -> datetime | None:
        return refuse_no_time(until, info.data.get("since"))


class ScoreRange(Body):
    """Bounds of a score; all that are given must hold."""

    gt: Number | None = None
    gte: Number | None = None
    lt: Number | None = None
    lte: Number | None = None
    eq: Number | None = None

    @model_validator(mode="after")
    def _holds_some_score(self) -> Self:
        lower = max((b for b in (self.gt, self.gte, self.eq) if b is not None), default=None)
        upper = min((b for b in (self.lt, self.lte, self.eq) if b is not None), default=None)
        if lower is None or upper is None or lower < upper:
            return self
        if lower > upper or lower in (self.gt, self.lt):
            raise ValueError(
                f"the lower bound {lower:g} leaves no score below the upper bound {upper:g}"
            )
        return self
