"""The blobs of an inference: which of them are still stored, and under which key."""

from typing import Final

from .read import Inference

BLOBS: Final = ("data", "response", "metadata")
STORAGE_KEYS: Final = {blob: f"{blob}_storage_key" for blob in BLOBS}


def get_storage_key(inference: Inference, blob: str) -> str | None:
    """Return the key of a blob; None if there is none, or none any more."""
    if is_erased(inference, blob):
        return None
    key: str | None = inference.row[STORAGE_KEYS[blob]]
    return key


def is_erased(inference: Inference, blob: str) -> bool:
    """Return whether a blob was deleted, or is about to be, while the inference stays."""
    if blob == "data":
        return inference.input_erased
    return blob == "response" and inference.response_erased


def is_input_too(inference: Inference) -> bool:
    """Return whether the event named one object as the response and as a part of the request."""
    response = get_storage_key(inference, "response")
    request = {get_storage_key(inference, "data"), get_storage_key(inference, "metadata")}
    return response is not None and response in request
