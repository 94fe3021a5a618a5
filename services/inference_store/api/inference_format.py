"""Formats inferences for answers."""

import asyncio
from collections.abc import Collection
from datetime import datetime, timedelta
from operator import itemgetter
from typing import Any

from inference_store.index import tables
from inference_store.inference.errors import BlobMissing
from inference_store.inference.events.storage_key import parse_stored
from inference_store.inference.metadata import decode_entries, list_entries
from inference_store.objects import Blobs
from inference_store.platform.settings import ApiSettings
from inference_store.query.read import Inference

from .answer import fit_times
from .paths import escape_segment
from .schemas.inferences import ShownInference
from .typed_metadata import MetadataAs, convert_metadata

BLOBS = ("data", "response", "metadata")
_FEW = 4
"""So many inferences' links are signed in less time than a thread takes to begin."""
_KEYS = {blob: f"{blob}_storage_key" for blob in BLOBS}
_FORMATTED = {"uid", "inference_id", "top_label", "metadata", *_KEYS.values()}
_AS_THEY_ARE = tuple(
    name
    for name in ShownInference.model_fields
    if name in tables.inference.columns and name not in _FORMATTED
)
_as_they_are = itemgetter(*_AS_THEY_ARE)
_TIMES = tuple(name for name in _AS_THEY_ARE if name.endswith("_at"))
_MICROSECOND = timedelta(microseconds=1)
_LATENCIES = (
    ("pre_ms", "received_at", "forwarded_at"),
    ("model_ms", "forwarded_at", "responded_at"),
    ("post_ms", "responded_at", "published_at"),
)


def format_inference(
    model_id: str, inference: Inference, *, metadata_as: MetadataAs = "list"
) -> dict[str, Any]:
    """Format an inference for JSON; its times have been through `fit_times`."""
    row = inference.row
    found: dict[str, Any] = {
        "uid": str(inference.uid),
        "model_id": model_id,
        "inference_id": row["inference_id"],
        "aliases": inference.aliases,
    }
    found.update(zip(_AS_THEY_ARE, _as_they_are(row), strict=True))
    fit_times(found, _TIMES)
    for name, start, end in _LATENCIES:
        found[name] = _compute_milliseconds(row[start], row[end])
    found["data_size_bytes"] = row["data_size"]
    found["top_label"] = inference.top_label
    for blob, name in _KEYS.items():
        found[name] = get_storage_key(inference, blob)
    if inference.metadata is not None:
        found["metadata"] = _format_metadata(inference.metadata, metadata_as)
    if inference.predictions is not None:
        found["predictions"] = inference.predictions
    return found


def get_storage_key(inference: Inference, blob: str) -> str | None:
    """Return the key of a blob; None if there is none, or none any more."""
    if is_erased(inference, blob):
        return None
    key: str | None = inference.row[_KEYS[blob]]
    return key


def is_erased(inference: Inference, blob: str) -> bool:
    """Whether a blob was deleted, or is about to be, while the inference stays."""
    if blob == "data":
        return inference.input_erased
    return blob == "response" and inference.response_erased


def build_path(model_id: str, inference: Inference) -> str:
    """Return the inference's own path."""
    return f"/v1/models/{escape_segment(model_id)}/inferences/uid:{inference.uid}"


async def build_links(
    settings: ApiSettings, blobs: Blobs, model_id: str, found: Collection[Inference]
) -> list[dict[str, str | None]]:
    """Return where each inference's blobs are read: presigned links, or the api's own routes."""
    if settings.presigned_urls == "off":
        return [_build_routes(model_id, each) for each in found]
    seconds = settings.presigned_url_seconds
    if len(found) <= _FEW and settings.s3_access_key.get_secret_value():
        return [_presign(blobs, each, seconds) for each in found]
    # without keys in the settings it may have to exchange a token for credentials
    return await asyncio.to_thread(lambda: [_presign(blobs, each, seconds) for each in found])


def _build_routes(model_id: str, inference: Inference) -> dict[str, str | None]:
    path = build_path(model_id, inference)
    there = {blob: get_storage_key(inference, blob) is not None for blob in BLOBS}
    return {blob: f"{path}/{blob}" if there[blob] else None for blob in BLOBS}


def _presign(blobs: Blobs, inference: Inference, seconds: int) -> dict[str, str | None]:
    return {blob: _presign_one(blobs, get_storage_key(inference, blob), seconds) for blob in BLOBS}


def _presign_one(blobs: Blobs, key: str | None, seconds: int) -> str | None:
    if key is None:
        return None
    try:
        return blobs.presign(parse_stored(key), seconds)
    except BlobMissing:  # a key that no client can address, or a bucket that is no longer allowed
        return None


def _compute_milliseconds(start: datetime | None, end: datetime | None) -> float | None:
    if start is None or end is None:
        return None
    return (end - start) / _MICROSECOND / 1000


def _format_metadata(stored: bytes, metadata_as: MetadataAs) -> Any:
    if metadata_as == "object":
        return convert_metadata(decode_entries(stored))
    return list_entries(stored)
