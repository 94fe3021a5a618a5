"""Metadata: its envelopes, its types, and its indexed values."""

from .entries import decode_entries as decode_entries
from .entries import encode_entries as encode_entries
from .entries import list_entries as list_entries
from .entries import read_rows as read_rows
from .reading import read_metadata as read_metadata
from .reading import read_tags as read_tags
from .values import COORDINATES as COORDINATES
from .values import KEY_ALIASES as KEY_ALIASES
from .values import METADATA_TYPES as METADATA_TYPES
from .values import TAGS as TAGS
from .values import TYPE_NAMES as TYPE_NAMES
from .values import Entry as Entry
from .values import Family as Family
from .values import Indexable as Indexable
from .values import Leaf as Leaf
from .values import Metadata as Metadata
from .values import MetadataCaps as MetadataCaps
from .values import MetadataType as MetadataType
from .values import Presence as Presence
from .values import type_named as type_named
