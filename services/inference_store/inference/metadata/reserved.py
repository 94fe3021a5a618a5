"""Keys with a meaning of their own."""

from collections.abc import Mapping
from decimal import Decimal
from types import MappingProxyType
from typing import Final

KEY_ALIASES: Final[Mapping[str, str]] = MappingProxyType(
    {"dataset_split": "dataset_snapshot_split"}
)
"""Keys that are indexed under another name."""

COORDINATES: Final[Mapping[str, Decimal]] = MappingProxyType(
    {"latitude": Decimal(90), "longitude": Decimal(180)}
)
"""Keys of a place on the map, in degrees, and their largest absolute value."""
