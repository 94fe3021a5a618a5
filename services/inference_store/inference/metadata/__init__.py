"""Metadata: its envelopes, its types, and its indexed values."""

from .caps import MetadataCaps
from .entry import Entry, Indexable, Leaf, Metadata, Presence, Section
from .metadata_reading import read_metadata
from .metadata_types import (
    METADATA_TYPES,
    TYPE_NAMES,
    Family,
    MetadataType,
    MetadataTypeEntry,
    type_named,
)
from .reserved import COORDINATES, KEY_ALIASES
from .stored_entries import decode_entries, encode_entries, list_entries, read_rows

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
