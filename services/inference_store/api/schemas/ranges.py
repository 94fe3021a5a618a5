"""Spans of time and ranges of scores; one that holds nothing is refused."""

from datetime import datetime
from typing import Annotated, Any, Self, TypeAlias

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)

from .fields import Body, Instant, Number


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
