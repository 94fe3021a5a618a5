"""A request for inferences, as it was sent."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from inference_store.query.cql2.tree import Node
from inference_store.query.filters.from_conditions import MetadataEntry

UnknownKeys = Literal["refuse", "empty"]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryRequest:
    """A question about the inferences of models; every given condition must hold.

    Times are half-open.
    """

    filter: Node | None = None
    filter_text: str | None = None
    """The text of the filter, if it was sent as text: errors point at a place in it."""
    metadata: Sequence[MetadataEntry] = ()
    since: datetime | None = None
    until: datetime | None = None
    inference_ids: Sequence[str] | None = None
    data_hashes: Sequence[str] | None = None
    ok: bool | None = None
    labels: Sequence[str] | None = None
    scores: Mapping[str, float] = field(default_factory=dict)
    predicted: bool = False
    newest_first: bool = True
    unknown_keys: UnknownKeys = "refuse"
