"""Valid things by default, varied by keyword."""

from datetime import UTC, datetime
from typing import Any

import orjson

from inference_store.inference.events import Buckets, InferenceEvent, decode, encode

NOW = datetime(2026, 11, 1, 12, 0, 0, 123456, tzinfo=UTC)
BUCKETS = Buckets("inference-store", frozenset({"elsewhere"}))


def make_payload(**changes: Any) -> bytes:
    """An event's bytes; values are the encoder's arguments."""
    values: dict[str, Any] = {
        "model_id": "people-detector",
        "inference_id": "1",
        "received_at": NOW,
        "data_storage_key": "a/data",
        "inference_storage_key": "a/response",
        "metadata_storage_key": "a/metadata",
    }
    return encode(**(values | changes))


def make_event(**changes: Any) -> InferenceEvent:
    """A decoded event."""
    return decode(make_payload(**changes), record_time=NOW, buckets=BUCKETS)


def altered(payload: bytes, **changes: Any) -> bytes:
    """The same message with members replaced; `...` takes one away."""
    document = orjson.loads(payload) | changes
    return orjson.dumps({name: value for name, value in document.items() if value is not ...})
