"""Formats inferences for answers."""

import asyncio
from collections.abc import Collection
from operator import itemgetter
from typing import Any

from inference_store.index import tables
from inference_store.inference.errors import BlobMissing
from inference_store.inference.events.storage_key import parse_stored
from inference_store.inference.metadata import decode_entries, list_entries
from inference_store.objects import Blobs
from inference_store.platform.settings import ApiSettings
from inference_store.query.latencies import LATENCIES, compute_latency
from inference_store.query.read import Inference
from inference_store.query.stored_blobs import BLOBS, STORAGE_KEYS, get_storage_key

from .answer import fit_times
from .paths import escape_segment
from .schemas.inferences import ShownInference
from .typed_metadata import MetadataAs, convert_metadata

_FEW_INFERENCES = 4
"""The links of so few inferences are signed in less time than a thread takes to start."""
_FORMATTED = {"uid", "inference_id", "top_label", "metadata", *STORAGE_KEYS.values()}
_UNCHANGED = tuple(
    name
    for name in ShownInference.model_fields
    if name in tables.inference.columns and name not in _FORMATTED
)
_get_unchanged = itemgetter(*_UNCHANGED)
_TIMES = tuple(name for name in _UNCHANGED if name.endswith("_at"))


def format_inference(
    model_id: str, inference: Inference, *, metadata_as: MetadataAs = "list"
) -> dict[str, Any]:
    """Format an inference for JSON; its times have been through `fit_times`."""
    row = inference.row
    item: dict[str, Any] = {
        "uid": str(inference.uid),
        "model_id": model_id,
        "inference_id": row["inference_id"],
        "aliases": inference.aliases,
    }
    item.update(zip(_UNCHANGED, _get_unchanged(row), strict=True))
    fit_times(item, _TIMES)
    for name in LATENCIES:
        item[name] = compute_latency(row, name)
    item["data_size_bytes"] = row["data_size"]
    item["top_label"] = inference.top_label
    for blob, name in STORAGE_KEYS.items():
        item[name] = get_storage_key(inference, blob)
    if inference.metadata is not None:
        item["metadata"] = _format_metadata(inference.metadata, metadata_as)
    if inference.prediction_values is not None:
        item["predictions"] = inference.predictions
    return item


def build_path(model_id: str, inference: Inference) -> str:
    """Return the inference's own path."""
    return f"/v1/models/{escape_segment(model_id)}/inferences/uid:{inference.uid}"


async def build_links(
    settings: ApiSettings, blobs: Blobs, model_id: str, inferences: Collection[Inference]
) -> list[dict[str, str | None]]:
    """Return where each inference's blobs are read: presigned links, or the api's own routes."""
    if settings.presigned_urls == "off":
        return [_build_routes(model_id, inference) for inference in inferences]
    seconds = settings.presigned_url_seconds
    if len(inferences) <= _FEW_INFERENCES and settings.s3_access_key.get_secret_value():
        return [_presign(blobs, inference, seconds) for inference in inferences]
    # without keys in the settings it may have to exchange a token for credentials
    return await asyncio.to_thread(
        lambda: [_presign(blobs, inference, seconds) for inference in inferences]
    )


def _build_routes(model_id: str, inference: Inference) -> dict[str, str | None]:
    path = build_path(model_id, inference)
    is_stored = {blob: get_storage_key(inference, blob) is not None for blob in BLOBS}
    return {blob: f"{path}/{blob}" if is_stored[blob] else None for blob in BLOBS}


def _presign(blobs: Blobs, inference: Inference, seconds: int) -> dict[str, str | None]:
    return {blob: _presign_one(blobs, get_storage_key(inference, blob), seconds) for blob in BLOBS}


def _presign_one(blobs: Blobs, key: str | None, seconds: int) -> str | None:
    if key is None:
        return None
    try:
        return blobs.presign(parse_stored(key), seconds)
    except BlobMissing:  # a key that no client can address, or a bucket that is no longer allowed
        return None


def _format_metadata(stored: bytes, metadata_as: MetadataAs) -> Any:
    if metadata_as == "object":
        return convert_metadata(decode_entries(stored))
    return list_entries(stored)
