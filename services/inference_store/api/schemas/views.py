"""Saved views."""

from datetime import datetime
from typing import Annotated, Any, Final, Literal, TypeAlias
from uuid import UUID

from pydantic import AfterValidator, ConfigDict, Field

from inference_store.api.shown import Shown
from inference_store.index.saved_views import Look, Shared
from inference_store.query.sort import NEWEST_FIRST

from .fields import Body, ShortText, Text, instant
from .parameters import PageParameters
from .questions import Sort
from .ranges import refuse_no_time

MOST_CHARACTERS: Final = 10_000
"""Of a filter: that of a link."""
_INSTANT: Final = (
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,9})?(Z|[+-][0-9]{2}:[0-9]{2})"
)
_TIME: Final = rf"^([0-9]{{1,4}}[mhd]|{_INSTANT}\.\.({_INSTANT})?|\.\.{_INSTANT})$"


def _check_time(value: str) -> str:
    start, between, end = value.partition("..")
    if between:
        refuse_no_time(_read_end(end), _read_end(start))
    return value


def _read_end(text: str) -> datetime | None:
    found: datetime | None = instant(text) if text else None
    return found


Name: TypeAlias = Annotated[ShortText, Field(min_length=1, max_length=120)]
Filter: TypeAlias = Annotated[
    Text, Field(min_length=1, max_length=MOST_CHARACTERS, examples=["frame_number > 9000"])
]
Time: TypeAlias = Annotated[
    ShortText, Field(pattern=_TIME, examples=["24h"]), AfterValidator(_check_time)
]
Columns: TypeAlias = Annotated[
    list[Annotated[Text, Field(min_length=1, max_length=300)]], Field(max_length=64)
]


class ViewBody(Body):
    """A view to save. Its filter and its sort are checked as a query's are."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "name": "doubtful persons",
                    "model_id": "hallway-detector",
                    "filter": "prediction(label = 'person' AND score < 0.4)",
                    "time": "24h",
                    "shared": "project",
                }
            ]
        }
    )

    name: Name
    """What people call it: once in a model for its project, and once for each caller."""
    model_id: ShortText
    filter: Filter | None = None
    """CQL2-Text. A relative time in it is resolved whenever the view is opened."""
    time: Time | None = None
    """`30m`, `24h` or `7d` before now, or `<from>..<to>` in RFC 3339, either of which may be
    missing; left out: all time."""
    sort: Sort = NEWEST_FIRST
    """As a query takes it."""
    view: Look = "grid"
    """How it is shown."""
    columns: Columns = Field(default=[])
    """The columns of a table: properties, and `metadata.` with a key; empty: its own choice."""
    shared: Shared = "private"
    """`private`: for you alone; `project`: for whoever may read the model, and that needs the right
    `annotate` over it."""


class ViewChange(Body):
    """What is to change; what is left out stays as it is."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"name": "doubtful people"}]})

    name: Name | None = None
    filter: Filter | None = None
    """Null: none."""
    time: Time | None = None
    """Null: all time."""
    sort: Sort | None = None
    view: Look | None = None
    columns: Columns | None = None
    shared: Shared | None = None
    """Only who saved it makes it private again."""

    def values(self) -> dict[str, Any]:
        """The fields that are given; null takes away what may be missing."""
        given = self.model_dump(include=self.model_fields_set)
        return {
            name: value
            for name, value in given.items()
            if value is not None or name in ("filter", "time")
        }


class ViewParameters(PageParameters):
    """Which page of which views."""

    model_id: ShortText | None = None
    """Those of this model."""
    shared: Shared | None = None


class ViewFault(Shown):
    """What is wrong with a view by now, though it was right when it was saved."""

    part: Literal["filter", "sort"]
    detail: str
    """What is wrong, as a query would be refused."""
    known: list[str]
    """The nearest names that there are."""


class ListedView(Shown):
    """A saved view."""

    id: UUID
    model_id: str
    project_id: str | None
    """The project that the model is in now."""
    name: str | None
    """Null: an erasure took it."""
    filter: str | None
    """CQL2-Text, as it was saved; null: none."""
    time: str | None
    """`30m`, `24h` or `7d` before now, or `<from>..<to>`, either of which may be missing; null: all
    time."""
    sort: str
    view: Look
    """How it is shown."""
    columns: list[str]
    """The columns of a table; empty: those that a table has by itself."""
    shared: Shared
    """`private`: for whoever saved it; `project`: for whoever may read the model."""
    revision: int
    created_by: str
    created_at: datetime
    updated_by: str
    updated_at: datetime
    erased_by: UUID | None
    """The erasure that took its name, filter, sort and columns, because one of them mentioned what
    was erased."""
    may_change: bool
    """Whether you may change and delete it."""


class ShownView(ListedView):
    """A saved view, and whether it can still be asked."""

    faults: list[ViewFault]
    """Empty: a query with its filter and its sort is answered."""


class ViewPage(Shown):
    """Saved views, the newest first."""

    items: list[ListedView]
    next: str | None
