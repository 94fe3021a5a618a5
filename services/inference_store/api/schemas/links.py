"""Questions as query parameters: what fits into a link."""

from datetime import datetime
from typing import Annotated

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator

from inference_store.api.typed_metadata import MetadataAs
from inference_store.query.cql2 import FilterLang
from inference_store.query.sort import NEWEST_FIRST

from .chosen_fields import split_fields
from .fields import ShortText
from .parameters import Parameters
from .questions import Cursor, Fields, IncludeOfLink, InferenceQuery, Sort
from .ranges import Received, Window, refuse_no_time


class InferenceLink(Parameters):
    """A simple question as a link; the whole language is POST …/inferences/query."""

    filter: str | None = Field(default=None, examples=["frame_number > 9000 AND NOT ok"])
    """A filter in CQL2."""
    filter_lang: FilterLang = Field(default="cql2-text", alias="filter-lang")
    """The filter's language."""
    inference_id: ShortText | None = None
    """Id or alias."""
    data_hash: ShortText | None = None
    """SHA-256 of the datum, in hexadecimal."""
    ok: bool | None = None
    """Whether the request succeeded."""
    received_from: Received | None = None
    """Received then or later."""
    received_to: Received | None = None
    """Received before then."""
    sort: Sort = NEWEST_FIRST
    """`received_at`, any other property, a metadata key, or the distance to a point:
    `distance(location, POINT(13.4 52.5))`; with `-` before it, descending."""
    limit: Annotated[int, Field(ge=1, le=1000)] = 50
    """Most inferences of a page."""
    cursor: Cursor | None = None
    """`next` of the page before, of the same question."""
    include: IncludeOfLink = []
    """What is shown beside the inference itself; repeat it, or separate names by commas."""
    metadata_as: MetadataAs = "list"
    """Metadata as a list of items as they came, or as an object of typed values by key."""
    fields: Annotated[Fields, BeforeValidator(split_fields)] | None = None
    """The fields that come back, and no others; repeat it, or separate names by commas."""
    timeout_seconds: Annotated[float, Field(ge=0.1, allow_inf_nan=False)] | None = None
    """Longest time to search, at most INFERENCE_STORE_QUERY_TIMEOUT_SECONDS."""

    @field_validator("received_to")
    @classmethod
    def _holds_some_time(cls, until: datetime | None, info: ValidationInfo) -> datetime | None:
        return refuse_no_time(until, info.data.get("received_from"))

    def query(self) -> InferenceQuery:
        """The same question as a body; a limit that was not given stays so."""
        limit = {name: getattr(self, name) for name in ("limit",) if name in self.model_fields_set}
        window = Window.model_validate({"from": self.received_from, "to": self.received_to})
        return InferenceQuery(
            **limit,
            filter=self.filter,
            filter_lang=None if self.filter is None else self.filter_lang,
            inference_ids=None if self.inference_id is None else [self.inference_id],
            data_hash=self.data_hash,
            ok=self.ok,
            received_at=window if window.since or window.until else None,
            sort=self.sort,
            cursor=self.cursor,
            include=self.include,
            metadata_as=self.metadata_as,
            fields=self.fields,
            timeout_seconds=self.timeout_seconds,
        )
