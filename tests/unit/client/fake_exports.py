"""Exports and their parts as the API shows them."""

import hashlib
from collections.abc import Sequence
from typing import Any, Final, get_type_hints

import httpx

from inference_store_client.values.exports import ExportFields

EXPORT: Final = "019ac3f2-7c00-8123-9abc-000000000001"
_LINK: Final = "https://bucket.example/exports/1/parts/00001-ab.jsonl?X-Amz-Signature=0"
_EMPTY: Final[dict[str, Any]] = {
    name: 0 if hint is int else None for name, hint in get_type_hints(ExportFields).items()
}


def make_export(state: str, **changes: Any) -> httpx.Response:
    known = {
        "id": EXPORT,
        "model_id": "hallway/detector",
        "format": "jsonl",
        "include": ["metadata"],
        "blobs": "none",
        "state": state,
        "requested_by": "key:k",
        "requested_at": "2026-11-01T00:00:00Z",
        "expires_at": "2026-11-08T00:00:00Z",
        "downloads": [],
    }
    return httpx.Response(200, json={**_EMPTY, **known, **changes})


def make_part(number: int, content: bytes | None, state: str = "removed") -> dict[str, Any]:
    """Make a part as the API shows it; None: it is not written, but in this state."""
    part: dict[str, Any] = {"number": number, "state": state, "gone": 0, "missing": 0}
    part |= dict.fromkeys(("url", "rows", "bytes", "sha256", "written_at"))
    if content is None:
        return part
    digest = hashlib.sha256(content).hexdigest()
    written = {"state": "written", "url": _LINK, "written_at": "2026-11-01T00:00:00Z"}
    return part | written | {"rows": 1, "bytes": len(content), "sha256": digest}


def make_page(parts: Sequence[dict[str, Any]], following: str | None = None) -> httpx.Response:
    return httpx.Response(200, json={"items": list(parts), "next": following})
