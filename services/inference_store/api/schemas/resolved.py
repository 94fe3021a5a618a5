"""Relative times, as answers show what they were taken for."""

from datetime import datetime

from pydantic import Field

from inference_store.api.shown import Shown


class ResolvedTime(Shown):
    """A relative time of the filter, and the instant that it was taken for."""

    expression: str = Field(examples=["now() - duration('PT1H')"])
    """As the filter has it, in CQL2-Text."""
    instant: datetime
