"""What arrives in the index, as events."""

from datetime import datetime
from typing import Annotated
from uuid import UUID

from pydantic import Field

from inference_store.api.shown import Shown
from inference_store.query.cql2 import FilterLang

from .parameters import Parameters


class FollowLink(Parameters):
    """Which arrivals."""

    filter: str | None = Field(default=None, examples=["NOT ok"])
    """A filter in CQL2. Its relative times are taken at each look."""
    filter_lang: FilterLang = Field(default="cql2-text", alias="filter-lang")
    """The filter's language."""
    seconds: Annotated[float, Field(ge=0, le=86_400, allow_inf_nan=False)] = 3_600.0
    """The stream ends after so long. Ask again then."""


class ArrivedInference(Shown):
    """An inference that was indexed."""

    uid: UUID
    inference_id: str
    received_at: datetime
    indexed_at: datetime
    ok: bool | None
    top_label: str | None
    top_score: float | None
    prediction_count: int | None


class Arrivals(Shown):
    """The data of an event `inferences`."""

    items: list[ArrivedInference]
    """In the order in which they were indexed; the last 50."""
    more: bool
    """Whether others arrived with them."""
