"""The formats of columns, in the one table that routes and docs read."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, Protocol

from .arrow import ArrowEncoder
from .csv_text import CsvEncoder
from .kinds import Column, Values


class Encoder(Protocol):
    """Encodes pages of one export, each with the same columns."""

    def encode_head(self, members: Mapping[str, Any]) -> bytes:
        """Return what comes before the first page; `members`: warnings and the like."""

    def encode_page(self, values: Sequence[Values], length: int) -> bytes:
        """Return a page of `length` inferences: the values of each column."""

    def encode_end(self) -> bytes:
        """Return what comes after the last page."""


@dataclass(frozen=True, slots=True)
class Format:
    """A format of columns."""

    name: str
    media_type: str
    make_encoder: Callable[[Sequence[Column]], Encoder]
    has_cursors: bool
    """Whether the last row of each page has a cursor, without being asked to."""
    has_room: bool
    """Whether what comes before the first page can hold warnings."""


def _table(*formats: Format) -> Mapping[str, Format]:
    return MappingProxyType({format.media_type: format for format in formats})


FORMATS: Final = _table(
    Format(
        "arrow",
        "application/vnd.apache.arrow.stream",
        ArrowEncoder,
        has_cursors=True,
        has_room=True,
    ),
    Format("csv", "text/csv", CsvEncoder, has_cursors=False, has_room=False),
)
"""By media type."""
