"""One inference."""

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from .metadata import NO_METADATA, Metadata
from .predictions import NO_PREDICTIONS, Predictions


@dataclass(frozen=True, slots=True, kw_only=True)
class Urls:
    """Links that read the blobs without a key, for a while; None: there is no such blob."""

    data: str | None
    response: str | None
    metadata: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceFields:
    """One datum and what the model answered. What is not known is None."""

    uid: UUID
    model_id: str
    inference_id: str
    aliases: tuple[str, ...]
    received_at: datetime
    forwarded_at: datetime | None
    responded_at: datetime | None
    published_at: datetime | None
    indexed_at: datetime | None
    pre_ms: float | None
    """Milliseconds from received to forwarded."""
    model_ms: float | None
    """Milliseconds from forwarded to responded."""
    post_ms: float | None
    """Milliseconds from responded to published."""
    ok: bool | None
    http_status: int | None
    grpc_code: int | None
    error: str | None
    trace_id: str | None
    model_version: str | None
    task_type: str | None
    protocol: str | None
    action: str | None
    batch_index: int | None
    batch_size: int | None
    capture_id: UUID | None
    data_hash: str | None
    data_size_bytes: int | None
    data_content_type: str | None
    width: int | None
    height: int | None
    top_label: str | None
    top_score: float | None
    prediction_count: int | None
    """None: the response failed or could not be read."""
    flags: tuple[str, ...]
    problem: str | None
    data_deleted_at: datetime | None
    response_deleted_at: datetime | None
    revision: int
    data_storage_key: str | None
    response_storage_key: str | None
    metadata_storage_key: str | None
    metadata: Metadata = NO_METADATA
    predictions: Predictions = NO_PREDICTIONS
    urls: Urls | None = None
    """With `include=["urls"]`."""
    distance_metres: float | None = None
    """If the order is the distance to a point."""
    cursor: str | None = None
    """Continues after this inference; of a stream."""
    count: int | None = None
    """How many inferences have this id; of an inference that was asked for by its id."""
