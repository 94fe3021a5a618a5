"""Rows as a table of text, and lists that show themselves as one."""

import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import reduce
from html import escape
from operator import getitem
from typing import Any, Final, Self, TypeVar
from unicodedata import east_asian_width

from inference_store_client.json_text import Json, write_json

# Text from outside, for a terminal: without what would steer it.


def make_printable(text: str, kept: str = "") -> str:
    """Return a text whose control and formatting characters are escaped, except those `kept`.

    Escape sequences move a cursor, and marks of direction turn a line around.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in kept else _escape(c) for c in text)


def measure(text: str) -> int:
    """Return how many columns of a terminal a text takes."""
    return len(text) if text.isascii() else sum(1 + _is_wide(c) for c in text)


def shorten(text: str, width: int) -> str:
    """Return a text that takes at most so many columns; `…` stands for what is missing."""
    if measure(text) <= width:
        return text
    taken, kept = 0, ""
    for character in text:
        taken += 1 + _is_wide(character)
        if taken > width - 1:
            break
        kept += character
    return f"{kept}…"


def _is_wide(character: str) -> bool:
    return east_asian_width(character) in {"W", "F"}


def _escape(character: str) -> str:
    known: dict[str, Any] = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
    number = ord(character)
    return str(known.get(character, f"\\x{number:02x}" if number < 256 else f"\\u{number:04x}"))


# The cells of a row.

_MICROSECONDS: Final = re.compile(r"\.\d{6}(?=Z$)", re.ASCII)


def pick(item: Mapping[str, Any], column: str) -> str:
    """Return the text of a cell."""
    name, _, part = column.partition(".")
    value = item[column] if column in item else _take(item.get(name), part)
    text = _format(value)
    return make_printable(_MICROSECONDS.sub("", text) if name.endswith("_at") else text)


def _take(value: Json, part: str) -> Json:
    if not part:
        return value
    if isinstance(value, list):
        return [element.get(part) for element in value]
    path = find_path(value, part) if isinstance(value, Mapping) else ()
    return reduce(getitem, path, value) if path else None


def find_path(value: Mapping[str, Json], name: str) -> Sequence[str]:
    """Return the members that lead to what is named; none: it is not there. A path with `[]` leads
    to the array."""
    if name in value:
        return (name,)
    for end in range(len(name) - 1, 0, -1):
        inner = value.get(name[:end])
        if name[end] == "." and isinstance(inner, Mapping):
            rest = find_path(inner, name[end + 1 :])
            return (name[:end], *rest) if rest else ()
        if name[end:].startswith("[]") and isinstance(inner, list):
            return (name[:end],)
    return ()


def _format(value: Any) -> str:
    match value:
        case None:
            return ""
        case str():
            return value
        case list():
            return ", ".join(map(_format, value))
    try:
        return write_json(value, ensure_ascii=False)
    except TypeError:  # a time or a UUID, which JSON has not
        return str(value)


# A table for a terminal.

_GAP: Final = "  "
_LEAST_WIDTH: Final = 8
_MOST_WIDTH: Final = 60


@dataclass(frozen=True, slots=True)
class Table:
    """Columns with their widths, in columns of the terminal."""

    columns: Sequence[str]
    widths: Sequence[int]

    @classmethod
    def fit(cls, columns: Sequence[str], items: Sequence[Mapping[str, Any]]) -> Self:
        """Return a table that the items fit into; the widest columns are cut to the terminal."""
        cells = [[measure(pick(item, column)) for item in items] for column in columns]
        widths = [
            min(max([measure(column), *widths]), _MOST_WIDTH)
            for column, widths in zip(columns, cells, strict=True)
        ]
        most = shutil.get_terminal_size().columns - len(_GAP) * (len(columns) - 1)
        while sum(widths) > most and max(widths) > _LEAST_WIDTH:
            widths[widths.index(max(widths))] -= 1
        return cls(columns, widths)

    def format_head(self) -> str:
        """Return the line above the rows."""
        return self._join(self.columns)

    def format_row(self, item: Mapping[str, Any]) -> str:
        """Return the line of an inference."""
        return self._join([pick(item, column) for column in self.columns])

    def _join(self, cells: Iterable[str]) -> str:
        return _GAP.join(map(_pad, cells, self.widths)).rstrip()


def _pad(cell: str, width: int) -> str:
    cut = shorten(cell, width)
    return cut + " " * (width - measure(cut))


# Lists that show themselves.

T = TypeVar("T")
INFERENCE_COLUMNS: Final = (
    *("inference_id", "received_at", "ok", "top_label", "top_score", "prediction_count"),
)
_MOST_FIELDS: Final = 4
"""Of a dataclass, those that come first."""
_MOST_ROWS: Final = 60


class Rows(list[T]):
    """A list of dataclasses or mappings that shows itself as a table."""

    def __repr__(self) -> str:
        if not self:
            return "[]"
        columns, items = self._list_cells()
        table = Table.fit(columns, items)
        more = [f"… {len(self):,} in all"] if len(self) > len(items) else []
        return "\n".join([table.format_head(), *map(table.format_row, items), *more])

    def _repr_html_(self) -> str:
        columns, items = self._list_cells()
        head = "".join(f"<th>{escape(column)}</th>" for column in columns)
        cells = (
            "".join(f"<td>{escape(pick(item, column))}</td>" for column in columns)
            for item in items
        )
        rows = "".join(f"<tr>{row}</tr>" for row in cells)
        more = f"<caption>{len(self):,} in all</caption>" if len(self) > len(items) else ""
        return f"<table>{more}<tr>{head}</tr>{rows}</table>"

    def _list_cells(self) -> tuple[Sequence[str], list[Mapping[str, Any]]]:
        """Return the columns that have a value, of dataclasses without those that hold more than
        one in some row; and the first rows."""
        items = [*map(_list_members, self[:_MOST_ROWS])]
        names = dict.fromkeys(name for item in items for name in item)
        if names.keys() >= set(INFERENCE_COLUMNS):
            return INFERENCE_COLUMNS, items
        if not any(map(is_dataclass, self)):
            return [*names], items
        values = {name: [item.get(name) for item in items] for name in names}
        shown = [
            name
            for name, cells in values.items()
            if any(cell is not None for cell in cells) and not any(map(_has_parts, cells))
        ]
        return shown[:_MOST_FIELDS], items


def _list_members(item: Any) -> Mapping[str, Any]:
    """Return the members of a row."""
    if not is_dataclass(item):
        return dict(item)
    names = (each.name for each in fields(item))
    return {name: getattr(item, name) for name in names if not name.startswith("_")}


def _has_parts(value: Any) -> bool:
    return isinstance(value, tuple) or is_dataclass(value)
