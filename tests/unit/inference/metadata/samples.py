"""Short ways to write metadata down and to look at what was read."""

import json
from typing import Any

from inference_store.inference.metadata import Metadata, MetadataCaps, read_metadata


def item(key: str, kind: str, value: Any) -> dict[str, Any]:
    """One element of the list envelope."""
    return {"key": key, "type": kind, "value": value}


def read(document: Any, **caps: int) -> Metadata:
    """A document written as JSON and read as metadata."""
    return read_metadata(json.dumps(document).encode(), caps=MetadataCaps(**caps))


def one(kind: str, value: Any, key: str = "k") -> Metadata:
    """The metadata of a single item."""
    return read([item(key, kind, value)])


def leaves(metadata: Metadata) -> list[tuple[str, str, Any]]:
    """(name, family, value) of each leaf."""
    return [(leaf.name, leaf.family, leaf.value) for leaf in metadata.leaves]


def presences(metadata: Metadata) -> dict[str, bool]:
    """Name to is_null."""
    return {presence.name: presence.is_null for presence in metadata.presences}


def entry_flags(metadata: Metadata) -> dict[str, tuple[str, ...]]:
    """Key to flags of each entry."""
    return {entry.key: entry.flags for entry in metadata.entries}
