"""Limits on the indexed metadata of one inference. What is over a cap is kept, not indexed, and
flagged."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MetadataCaps:
    """The limits for one inference."""

    keys: int = 256
    """Keys that are indexed; those after are kept."""
    key_characters: int = 256
    """Characters of a key or of a path into a JSON value."""
    levels: int = 8
    """Objects and arrays inside each other in a JSON value."""
    leaves: int = 256
    """Leaves of all JSON values of one inference together."""
    digits: int = 1_000
    """Digits of a number, before and after the point together."""
    exponent: int = 400
    """The largest |exponent| that a number may be written with."""
    blob_bytes: int = 1_048_576
    """Bytes of a metadata blob; a larger one is not read."""
