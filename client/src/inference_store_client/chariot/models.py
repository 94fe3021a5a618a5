"""What is asked and answered, under the reference system's names."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Self

from inference_store_client.times import read_instant


class MetadataFilterType(StrEnum):
    """How a value is compared."""

    STRING = "string"
    INT = "int"
    FLOAT = "float"
    JSON = "json"


class MetadataFilterOperator(StrEnum):
    """A comparison: those of `metadata_filter` that the store documents."""

    EQUAL = "EQUAL"
    NOT_EQUAL = "NOT_EQUAL"
    GREATER_THAN = "GREATER_THAN"
    GREATER_THAN_OR_EQUAL = "GREATER_THAN_OR_EQUAL"
    LESS_THAN = "LESS_THAN"
    LESS_THAN_OR_EQUAL = "LESS_THAN_OR_EQUAL"
    IN = "IN"
    NOT_IN = "NOT_IN"
    BETWEEN = "BETWEEN"
    LIKE = "LIKE"


@dataclass(frozen=True, slots=True)
class MetadataFilter:
    """One comparison of a metadata key."""

    key: str
    type: MetadataFilterType
    operator: MetadataFilterOperator
    value: Any


@dataclass(frozen=True, slots=True)
class BaseInferenceFilter:
    """Comparisons that all hold; none: every inference."""

    metadata_filter: Sequence[MetadataFilter] | None = None

    def to_body(self) -> dict[str, Any]:
        """Return the members of a query of the API."""
        if not self.metadata_filter:
            return {}
        return {"metadata_filter": [asdict(each) for each in self.metadata_filter]}


class PaginationSortField(StrEnum):
    """What inferences are sorted by."""

    CREATED_AT = "created_at"


class PaginationSortDirection(StrEnum):
    """The direction of a sort."""

    ASCENDING = "asc"
    DESCENDING = "desc"


@dataclass(frozen=True, slots=True)
class Pagination:
    """Which part of the matches; `limit` None: all."""

    limit: int | None = None
    offset: int = 0
    sort: PaginationSortField = PaginationSortField.CREATED_AT
    direction: PaginationSortDirection = PaginationSortDirection.DESCENDING


@dataclass(frozen=True, slots=True)
class NewGetInferencesRequest:
    """A question about the inferences of a model."""

    filters: BaseInferenceFilter = field(default_factory=BaseInferenceFilter)
    pagination: Pagination = field(default_factory=Pagination)


@dataclass(frozen=True, slots=True)
class Metadata:
    """One metadata item as it came."""

    key: str
    type: str
    value: str | None


@dataclass(frozen=True, slots=True)
class Inference:
    """An inference, with the names of the reference system's event."""

    model_id: str
    inference_id: str
    inference_action: str | None
    data_hash: str | None
    metadata: Sequence[Metadata]
    presigned_url: str | None
    """Reads the data without a key, for a while; None: it was not asked for."""
    request_received_at: datetime
    request_forwarded_at: datetime | None
    request_responded_at: datetime | None
    event_published_at: datetime | None
    data_storage_key: str | None
    inference_storage_key: str | None
    metadata_storage_key: str | None

    @classmethod
    def of(cls, item: Mapping[str, Any]) -> Self:
        """Return an inference of the API."""
        entries = item.get("metadata") or ()
        return cls(
            model_id=item["model_id"],
            inference_id=item["inference_id"],
            inference_action=item["action"],
            data_hash=item["data_hash"],
            metadata=[Metadata(each["key"], each["type"], each["value"]) for each in entries],
            presigned_url=(item.get("urls") or {}).get("data"),
            request_received_at=read_instant(item["received_at"]),
            request_forwarded_at=_read_instant(item["forwarded_at"]),
            request_responded_at=_read_instant(item["responded_at"]),
            event_published_at=_read_instant(item["published_at"]),
            data_storage_key=item["data_storage_key"],
            inference_storage_key=item["response_storage_key"],
            metadata_storage_key=item["metadata_storage_key"],
        )


def _read_instant(text: str | None) -> datetime | None:
    return None if text is None else read_instant(text)
