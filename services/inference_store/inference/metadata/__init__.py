"""Metadata: its envelopes, its types, and its indexed values."""

from inference_store.inference.metadata.entries import (
    decode_entries,
    encode_entries,
    list_entries,
    read_rows,
)
from inference_store.inference.metadata.reading import read_metadata
from inference_store.inference.metadata.values import (
    COORDINATES,
    KEY_ALIASES,
    METADATA_TYPES,
    TYPE_NAMES,
    Entry,
    Family,
    Indexable,
    Leaf,
    Metadata,
    MetadataCaps,
    MetadataType,
    MetadataTypeEntry,
    Presence,
    Section,
    type_named,
)

__all__ = [
    "COORDINATES",
    "KEY_ALIASES",
    "METADATA_TYPES",
    "TYPE_NAMES",
    "Entry",
    "Family",
    "Indexable",
    "Leaf",
    "Metadata",
    "MetadataCaps",
    "MetadataType",
    "MetadataTypeEntry",
    "Presence",
    "Section",
    "decode_entries",
    "encode_entries",
    "list_entries",
    "read_metadata",
    "read_rows",
    "type_named",
]
