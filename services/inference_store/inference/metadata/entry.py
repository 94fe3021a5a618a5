"""Metadata as it is indexed: unchanged entries, leaves to index, presences."""

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Literal, NamedTuple, TypeAlias

from .metadata_types import Family, MetadataType

Section: TypeAlias = Literal["standard", "extended"]
Indexable: TypeAlias = Decimal | str | bool | datetime


# Named tuples, not dataclasses: twenty are made per event, each at a third of the cost.
class Entry(NamedTuple):
    """One metadata item as it came."""

    key: str
    type: str
    """The declared type's name as it came; empty when none was declared."""
    value: str | None
    """The string as it came; JSON text for anything that was not a string; None for null."""
    section: Section
    flags: tuple[str, ...] = ()


class Leaf(NamedTuple):
    """One value to index."""

    name: str
    """The key, or the path into a JSON value; elements of an array are `tags[]`."""
    type: MetadataType
    family: Family
    value: Indexable
    """Number: Decimal, finite, within the caps. Timestamp: UTC. String: storable by Postgres."""
    flags: tuple[str, ...] = ()


class Presence(NamedTuple):
    """A name that was sent, whether or not it has a leaf."""

    name: str
    type: str
    is_null: bool
    """All that was sent under the name is JSON null."""
    flags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Metadata:
    """All metadata of one inference."""

    entries: tuple[Entry, ...] = ()
    leaves: tuple[Leaf, ...] = ()
    """Deduplicated by (name, family, value)."""
    presences: tuple[Presence, ...] = ()
    """Names without a leaf, values that are no value of their type, every object and array."""
    several: tuple[str, ...] = ()
    """Names with several values of a family, beside elements of arrays."""
    flags: tuple[str, ...] = ()
    problem: str | None = None
    """The problem and its place, for people."""
