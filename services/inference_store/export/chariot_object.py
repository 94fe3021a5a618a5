"""An inference under the names of the reference system's event.

`inference_store_client.chariot` gives the same of an inference of the API; a test compares them.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

_NAMES: Final = MappingProxyType(
    {
        "model_id": "model_id",
        "inference_id": "inference_id",
        "inference_action": "action",
        "data_hash": "data_hash",
        "request_received_at": "received_at",
        "request_forwarded_at": "forwarded_at",
        "request_responded_at": "responded_at",
        "event_published_at": "published_at",
        "data_storage_key": "data_storage_key",
        "inference_storage_key": "response_storage_key",
        "metadata_storage_key": "metadata_storage_key",
    }
)
"""The name that the store has for each; `metadata` and `presigned_url` are beside them."""
_ENTRY: Final = ("key", "type", "value")


def format_chariot(item: Mapping[str, Any]) -> dict[str, Any]:
    """Return the reference system's object of the store's. Predictions have no name there."""
    entries = item.get("metadata") or ()
    urls = item.get("urls") or {}
    return {
        **{name: item[ours] for name, ours in _NAMES.items()},
        "metadata": [{name: entry[name] for name in _ENTRY} for entry in entries],
        "presigned_url": urls.get("data"),
    }
