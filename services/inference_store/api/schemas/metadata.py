"""Metadata keys, and changes of metadata."""

from datetime import datetime
from typing import Annotated, Any

from pydantic import ConfigDict, Field, Strict

from inference_store.api.shown import Shown

from .fields import WHOLE, Body, ShortText


class ShownType(Shown):
    """One type under which a key came."""

    type: str
    flag: str
    """Empty where the values are indexed as their type; else why not, or how they came."""
    count: int
    first_seen: datetime
    last_seen: datetime
    examples: tuple[str, ...]


class ShownMetadataKey(Shown):
    """A metadata key of a model."""

    name: str
    compared_as: list[str]
    """number, string, bool, timestamp: what its values can be compared as."""
    conflict: bool
    """Its values came as things that cannot be compared with each other."""
    count: int
    types: list[ShownType]


class KeyPage(Shown):
    """Metadata keys, in order of name."""

    items: list[ShownMetadataKey]
    next: str | None
    capped: bool
    """The model has as many keys as are indexed: further ones are kept, and not indexed."""


class MetadataItem(Body):
    """One metadata item to add, or to put in the place of the one that has its key."""

    key: Annotated[ShortText, Field(min_length=1)]
    type: Annotated[str, Field(max_length=32)]
    """string, int, float, bool, timestamp or json."""
    value: Any = Field(description="A string, as in events; other JSON is taken as its text.")


class MetadataChange(Body):
    """Metadata to add or change."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"metadata": [{"key": "reviewed", "type": "bool", "value": "true"}], "revision": 1}
            ]
        }
    )

    metadata: Annotated[list[MetadataItem], Field(min_length=1, max_length=256)]
    revision: Annotated[int, Strict(), Field(ge=1), WHOLE] | None = None
    """The revision that the inference must have now; like If-Match."""
