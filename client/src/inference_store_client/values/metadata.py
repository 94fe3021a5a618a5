"""The metadata of an inference: typed values by key, and the entries as they came."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal

from inference_store_client.errors import NotIncluded

from .metadata_values import MetadataValue, read_value


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataEntry:
    """One metadata item as it came."""

    key: str
    type: str
    value: str | None
    section: Literal["standard", "extended"]
    flags: tuple[str, ...]


class Metadata(Mapping[str, MetadataValue]):
    """Metadata by key, each value in its type; the last one of a key that came twice.

    `entries` has every item as it came. Raises NotIncluded if metadata was not asked for.
    """

    def __init__(self, entries: tuple[MetadataEntry, ...] | None) -> None:
        self._entries = entries

    @property
    def entries(self) -> tuple[MetadataEntry, ...]:
        """Every item as it came, in order."""
        if self._entries is None:
            raise NotIncluded("metadata was not asked for: include=['metadata']")
        return self._entries

    @cached_property
    def _by_key(self) -> Mapping[str, MetadataValue]:
        return {entry.key: read_value(entry.type, entry.value) for entry in self.entries}

    def __getitem__(self, key: str) -> MetadataValue:
        return self._by_key[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_key)

    def __len__(self) -> int:
        return len(self._by_key)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Metadata):
            return self._entries == other._entries
        return NotImplemented if not isinstance(other, Mapping) else dict(self) == dict(other)

    def __hash__(self) -> int:
        return hash(self._entries)

    def __repr__(self) -> str:
        return "Metadata(not included)" if self._entries is None else f"Metadata({self._by_key})"


NO_METADATA: Final = Metadata(None)
"""What was not asked for."""
