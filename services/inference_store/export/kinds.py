"""The kinds of columns, in the one table that formats and docs read."""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final, NamedTuple


class Kind(StrEnum):
    """What the values of a column are."""

    TEXT = "text"
    INTEGER = "integer"
    FLOAT = "float"
    BOOL = "bool"
    TIME = "time"
    BYTES = "bytes"
    TEXTS = "texts"
    PREDICTIONS = "predictions"


MEANINGS: Final[Mapping[Kind, tuple[str, str]]] = MappingProxyType(
    {
        Kind.TEXT: ("utf8", "the text"),
        Kind.INTEGER: ("int64", "the digits"),
        Kind.FLOAT: ("double", "the shortest decimals that read as the same double"),
        Kind.BOOL: ("bool", "`true` or `false`"),
        Kind.TIME: ("timestamp(us, UTC)", "RFC 3339 in UTC, with microseconds"),
        Kind.BYTES: ("binary", "(in no CSV)"),
        Kind.TEXTS: ("list<utf8>", "a JSON array"),
        Kind.PREDICTIONS: ("list<struct>", "a JSON array of objects"),
    }
)
"""By kind: its type in Arrow, and how CSV spells it. Null is null in Arrow and nothing in CSV."""


class Column(NamedTuple):
    """A column: its name and kind; `members` of predictions: the name and kind of each."""

    name: str
    kind: Kind
    members: tuple[tuple[str, Kind], ...] = ()


Values = Sequence[Any]
"""The values of a column, one a row; None: null. Predictions are tuples in the order of
`members`."""
