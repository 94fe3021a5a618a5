"""What a dataset says of an inference, as JSON that a reader cannot round."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any

from inference_store_client.instants import format_instant
from inference_store_client.values.inference import InferenceFields
from inference_store_client.values.metadata import Metadata


def format_inference(inference: InferenceFields) -> dict[str, Any]:
    """Return who an inference is; no link and no storage key."""
    return {
        "uid": str(inference.uid),
        "inference_id": inference.inference_id,
        "model_id": inference.model_id,
        "received_at": format_instant(inference.received_at),
    }


def format_metadata(metadata: Metadata) -> dict[str, Any]:
    """Return metadata by key: whole numbers exact, a decimal that no double holds as text."""
    return {key: _format_value(value) for key, value in metadata.items()}


def write_record(record: Mapping[str, Any]) -> str:
    """Return a record as a line of JSON."""
    return json.dumps(record, allow_nan=False) + "\n"


def _format_value(value: Any) -> Any:
    match value:
        case Decimal():
            return _format_decimal(value)
        case datetime():
            return format_instant(value)
        case str() | None | bool() | int():
            return value
        case Mapping():
            return {str(name): _format_value(member) for name, member in value.items()}
        case Sequence():
            return [*map(_format_value, value)]
    raise TypeError(f"metadata has no {type(value).__name__}")


def _format_decimal(value: Decimal) -> float | str:
    double = float(value)
    return double if Decimal(repr(double)) == value else str(value)
