"""Builders of valid events, varied by keyword."""

from datetime import UTC, datetime
from typing import Any

import orjson

from inference_store.inference.events import Buckets, InferenceEvent, decode, encode

NOW = datetime(2026, 11, 1, 12, 0, 0, 123456, tzinfo=UTC)
BUCKETS = Buckets("inference-store", frozenset({"elsewhere"}))


def make_payload(**changes: Any) -> bytes:
    """Encode an event; `changes` are arguments of the encoder."""
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
    return decode(make_payload(**changes), record_time=NOW, buckets=BUCKETS)


def replace_members(payload: bytes, **changes: Any) -> bytes:
    """Return a message with members replaced; `...` removes one."""
    document = orjson.loads(payload) | changes
    return orjson.dumps({name: value for name, value in document.items() if value is not ...})
