"""The facts of one inference, on which a filter is evaluated without a database."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, TypeAlias

from inference_store.inference.metadata import COORDINATES, Family, Indexable, Metadata

Point: TypeAlias = tuple[Decimal, Decimal]
"""Longitude, latitude, in degrees."""
_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Facts:
    """One inference."""

    properties: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Values by name in `PROPERTIES`, except `location`; empty or missing: NULL."""
    metadata: Metadata = field(default_factory=Metadata)
    predictions: Sequence[Mapping[str, Any]] | None = ()
    """Columns by name in `PREDICTION_COLUMNS`; None: unknown."""

    def metadata_values(self, name: str, family: Family) -> tuple[Indexable, ...]:
        """Return the values of a key that can be compared as this family."""
        leaves = self.metadata.leaves
        return tuple(leaf.value for leaf in leaves if leaf.name == name and leaf.family == family)

    def is_missing(self, name: str) -> bool:
        """Check whether the key has no value of any kind; JSON null is none."""
        if any(leaf.name == name for leaf in self.metadata.leaves):
            return False
        return not any(p.name == name and not p.is_null for p in self.metadata.presences)

    def was_sent(self, name: str) -> bool:
        """Check whether the key was sent, whatever its value."""
        leaves, presences = self.metadata.leaves, self.metadata.presences
        return any(row.name == name for row in leaves) or any(p.name == name for p in presences)

    @property
    def location(self) -> Point | None:
        """The point of the reserved keys; None for coordinates off the map."""
        longitude, latitude = self._coordinate("longitude"), self._coordinate("latitude")
        return None if longitude is None or latitude is None else (longitude, latitude)

    def _coordinate(self, name: str) -> Decimal | None:
        for value in self.metadata_values(name, "number"):
            if isinstance(value, Decimal) and abs(value) <= COORDINATES[name]:
                return value
        return None


def exact(number: Decimal | float) -> Decimal:
    """Return the number that is compared: for a double, the decimal of its shortest spelling."""
    if isinstance(number, float):
        return Decimal(repr(number).removesuffix(".0"))
    return Decimal(number)


def milliseconds(start: datetime | None, end: datetime | None) -> tuple[Decimal, ...]:
    """Return the exact milliseconds between two instants, with six decimals as in Postgres."""
    if start is None or end is None:
        return ()
    microseconds = (end - start) // _MICROSECOND
    return (Decimal(microseconds * 1000).scaleb(-6),)
