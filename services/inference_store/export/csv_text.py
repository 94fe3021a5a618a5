"""Inferences as CSV (RFC 4180): a line of names, a line for each inference.

Null is nothing and an empty text is `""`, so that the two differ. A spreadsheet may run a text that
begins with `=`: the values are those of the store, unchanged.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import orjson

from .kinds import Column, Kind, Values

_END: Final = "\r\n"


class CsvEncoder:
    """Encodes pages of one export, each with the same columns."""

    def __init__(self, columns: Sequence[Column]) -> None:
        self._columns = columns

    def encode_head(self, members: Mapping[str, Any]) -> bytes:  # noqa: ARG002  (CSV has no room)
        """Return the line of names."""
        return _encode_lines([[_quote(column.name) for column in self._columns]])

    def encode_page(self, values: Sequence[Values], length: int) -> bytes:  # noqa: ARG002
        """Return the lines of a page: the values of each column."""
        pairs = zip(values, self._columns, strict=True)
        return _encode_lines(zip(*(_spell(items, column) for items, column in pairs), strict=True))

    def encode_end(self) -> bytes:
        """Return nothing: CSV has no mark of its end."""
        return b""


def _encode_lines(rows: Any) -> bytes:
    text = "".join(f"{','.join(cells)}{_END}" for cells in rows)
    return text.encode("utf-8", "backslashreplace")


def _spell(values: Values, column: Column) -> list[str]:
    spell = _SPELLINGS[column.kind]
    if column.kind is Kind.PREDICTIONS:
        names = [name for name, _ in column.members]
        values = [[dict(zip(names, item, strict=True)) for item in items] for items in values]
    return ["" if value is None else spell(value) for value in values]


def _quote(text: str) -> str:
    return '"' + text.replace('"', '""') + '"'


def _spell_time(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="microseconds")[:-6] + "Z"


def _spell_json(value: Any) -> str:
    return _quote(orjson.dumps(value).decode())


_SPELLINGS: Final[Mapping[Kind, Callable[[Any], str]]] = {
    Kind.TEXT: _quote,
    Kind.INTEGER: str,
    Kind.FLOAT: repr,
    Kind.BOOL: lambda value: "true" if value else "false",
    Kind.TIME: _spell_time,
    Kind.TEXTS: _spell_json,
    Kind.PREDICTIONS: _spell_json,
}
