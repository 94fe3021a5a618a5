"""Metadata: the envelopes it comes in, its types, and what of it is indexed."""

from .caps import MetadataCaps
from .entry import Entry, Indexable, Leaf, Metadata, Presence, Section
from .metadata_types import (
    METADATA_TYPES,
    TYPE_NAMES,
    Family,
    MetadataType,
    MetadataTypeEntry,
    type_named,
)
from .reading import read_metadata
from .reserved import COORDINATES, KEY_ALIASES
from .stored_entries import decode_entries, encode_entries, list_entries

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
    "type_named",
]
