"""The inferences before and after one."""

from datetime import datetime
from uuid import UUID

from pydantic import ConfigDict

from inference_store.api.shown import Shown
from inference_store.query.sort import NEWEST_FIRST

from .questions import Conditions, Sort
from .resolved import ResolvedTime


class NeighbourQuery(Conditions):
    """Conditions, and the inference to look from."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"uid": "019ac3f2-7c00-8123-9abc-0123456789ab", "filter": "NOT ok"}]
        }
    )

    uid: UUID
    """It need not match. In order of time it need not be there any more, for a uid is a place in
    time; in another order it must be (404)."""
    sort: Sort = NEWEST_FIRST
    """As a page takes it."""


class Neighbour(Shown):
    """An inference that matches."""

    uid: UUID
    inference_id: str
    received_at: datetime


class Neighbours(Shown):
    """The nearest matches before and after an inference, in the order of `sort`."""

    before: Neighbour | None
    """Null: there is none, or the time ran out."""
    after: Neighbour | None
    complete: bool
    """False: the time ran out on one side, and a null may be one that was not found."""
    warnings: list[str]
    resolved: list[ResolvedTime] | None = None
    """What the filter's relative times were taken for; where it has some."""
