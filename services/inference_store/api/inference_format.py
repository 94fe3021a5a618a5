"""Formats inferences for answers."""

import asyncio
from collections.abc import Collection
from typing import Any

from inference_store.export import inference_object
from inference_store.inference.errors import BlobMissing
from inference_store.inference.events.event import parse_stored
from inference_store.inference.metadata import decode_entries
from inference_store.objects import Blobs
from inference_store.platform.settings import ApiSettings
from inference_store.query.read import BLOBS, Inference, get_storage_key

from .paths import escape_segment
from .typed_metadata import MetadataAs, convert_metadata

_FEW_INFERENCES = 4
"""The links of so few inferences are signed in less time than a thread takes to start."""


def format_inference(
    model_id: str, inference: Inference, *, metadata_as: MetadataAs = "list"
) -> dict[str, Any]:
    """Format an inference for JSON; its times have been through `fit_times`."""
    if metadata_as == "object":
        return inference_object.format_inference(
            model_id, inference, show_metadata=_format_as_object
        )
    return inference_object.format_inference(model_id, inference)


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


def _format_as_object(stored: bytes) -> dict[str, Any]:
    return convert_metadata(decode_entries(stored))
