"""Short ways to write metadata down and to look at what was read."""

import json
from typing import Any

from inference_store.inference.metadata import Metadata, MetadataCaps, read_metadata


def make_item(key: str, kind: str, value: Any) -> dict[str, Any]:
    return {"key": key, "type": kind, "value": value}


def read(document: Any, **caps: int) -> Metadata:
    return read_metadata(json.dumps(document).encode(), caps=MetadataCaps(**caps))


def read_item(kind: str, value: Any, key: str = "k") -> Metadata:
    return read([make_item(key, kind, value)])


def list_leaves(metadata: Metadata) -> list[tuple[str, str, Any]]:
    return [(leaf.name, leaf.family, leaf.value) for leaf in metadata.leaves]


def list_presences(metadata: Metadata) -> dict[str, bool]:
    return {presence.name: presence.is_null for presence in metadata.presences}


def list_flags(metadata: Metadata) -> dict[str, tuple[str, ...]]:
    return {entry.key: entry.flags for entry in metadata.entries}
