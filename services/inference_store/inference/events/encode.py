"""Encodes an inference as the message of nine fields."""

from datetime import UTC, datetime
from typing import Any

import orjson


def rfc3339(at: datetime | None) -> str:
    """Return an instant as the event spells it; Go's zero time if there is none."""
    if at is None:
        return "0001-01-01T00:00:00Z"
    return at.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def encode(
    *,
    model_id: str,
    inference_id: str,
    received_at: datetime,
    forwarded_at: datetime | None = None,
    responded_at: datetime | None = None,
    published_at: datetime | None = None,
    data_storage_key: str = "",
    inference_storage_key: str = "",
    metadata_storage_key: str = "",
    **extras: Any,
) -> bytes:
    """Return the event's bytes: the nine fields, then the given extras."""
    return orjson.dumps(
        {
            "model_id": model_id,
            "inference_id": inference_id,
            "request_received_at": rfc3339(received_at),
            "request_forwarded_at": rfc3339(forwarded_at),
            "request_responded_at": rfc3339(responded_at),
            "event_published_at": rfc3339(published_at),
            "data_storage_key": data_storage_key,
            "inference_storage_key": inference_storage_key,
            "metadata_storage_key": metadata_storage_key,
            **extras,
        }
    )
