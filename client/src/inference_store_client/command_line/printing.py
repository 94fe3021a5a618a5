"""Prints results: a table on a terminal, lines of JSON in a pipe."""

import argparse
import re
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import getitem
from typing import Any, Final, Self
from unicodedata import east_asian_width

from inference_store_client.json_text import Json, write_json
from inference_store_client.values.inference import read_value

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


# Inferences as the rows of a table, and as lines of JSON with exact numbers.

DEFAULT_COLUMNS: Final = (
    *("inference_id", "received_at", "ok", "top_label", "top_score", "prediction_count"),
)
_METADATA: Final = "metadata"
_MICROSECONDS: Final = re.compile(r"\.\d{6}(?=Z$)", re.ASCII)
_TEXTS: Final = frozenset({"timestamp", "datetime", "date"})


def shape(item: Mapping[str, Any], columns: Sequence[str] | None) -> dict[str, Any]:
    """Return an inference of the API with its metadata by key, and with these columns alone."""
    if columns is None:
        chosen = {name: value for name, value in item.items() if name != "cursor"}
    else:
        names = dict.fromkeys(column.partition(".")[0] for column in columns)
        chosen = {name: item.get(name) for name in names}
    if isinstance(chosen.get(_METADATA), list):
        metadata = _read_metadata(chosen[_METADATA])
        is_whole = columns is None or _METADATA in columns
        chosen[_METADATA] = metadata if is_whole else _narrow(metadata, columns or ())
    return chosen


def _narrow(metadata: Mapping[str, Json], columns: Iterable[str]) -> dict[str, Json]:
    """Return the metadata that columns name: the API sends all of a key into which a path leads."""
    narrowed: dict[str, Json] = {}
    for column in columns:
        field, _, name = column.partition(".")
        path = _find_path(metadata, name) if field == _METADATA else ()
        if path:
            value, target = metadata, narrowed
            for member in path[:-1]:
                value, target = value[member], target.setdefault(member, {})
            target[path[-1]] = value[path[-1]]
    return narrowed


def _read_metadata(entries: Iterable[Mapping[str, Any]]) -> dict[str, Json]:
    """Return metadata by key, each value in its type, times as the text that came."""
    return {entry["key"]: _read_entry(entry["type"], entry["value"]) for entry in entries}


def _read_entry(type_name: str, text: str | None) -> Json:
    return text if type_name.strip().lower() in _TEXTS else read_value(type_name, text)


def write_line(value: Json) -> str:
    """Return a value as a line of JSON for standard output, with exact numbers."""
    line = write_json(value, ensure_ascii=False)
    try:
        line.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:  # a lone surrogate, or a terminal that is not of UTF-8
        return write_json(value)
    return line


def pick(item: Mapping[str, Any], column: str) -> str:
    """Return the text of a cell."""
    name, _, part = column.partition(".")
    text = _format(_take(item.get(name), part))
    return make_printable(_MICROSECONDS.sub("", text) if name.endswith("_at") else text)


def _take(value: Json, part: str) -> Json:
    if not part:
        return value
    if isinstance(value, list):
        return [element.get(part) for element in value]
    return _take_within(value, part) if isinstance(value, Mapping) else None


def _take_within(value: Mapping[str, Json], part: str) -> Json:
    """Return a member by its name, which may have dots, or by a path."""
    path = _find_path(value, part)
    return reduce(getitem, path, value) if path else None


def _find_path(value: Mapping[str, Json], name: str) -> Sequence[str]:
    """Return the members that lead to what is named; none: it is not there. A path with `[]` leads
    to the array."""
    if name in value:
        return (name,)
    for end in range(len(name) - 1, 0, -1):
        inner = value.get(name[:end])
        if name[end] == "." and isinstance(inner, Mapping):
            rest = _find_path(inner, name[end + 1 :])
            return (name[:end], *rest) if rest else ()
        if name[end:].startswith("[]") and isinstance(inner, list):
            return (name[:end],)
    return ()


def _format(value: Json) -> str:
    match value:
        case None:
            return ""
        case str():
            return value
        case list():
            return ", ".join(map(_format, value))
    return write_line(value)


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


TABLE, LINES = "table", "jsonl"
FORMATS: Final = (TABLE, LINES)


def add_format(parser: argparse.ArgumentParser) -> None:
    """Add the format."""
    parser.add_argument(
        "--format", choices=FORMATS, help=f"default: {TABLE} on a terminal, {LINES} in a pipe"
    )


def is_table(options: argparse.Namespace) -> bool:
    """Return whether people read the results."""
    chosen = options.format or (TABLE if sys.stdout.isatty() else LINES)
    return bool(chosen == TABLE)


def choose_columns(options: argparse.Namespace) -> Sequence[str] | None:
    """Return the columns to ask for; None: everything, which only lines of JSON can hold."""
    if options.columns is None and is_table(options):
        return DEFAULT_COLUMNS
    columns: Sequence[str] | None = options.columns
    return columns


class RowPrinter:
    """Prints inferences of the API as they come; a table is as wide as the first of them need."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._columns = choose_columns(options)
        self._is_table = is_table(options)
        self._table: Table | None = None

    def print_rows(self, items: Iterable[Mapping[str, Any]]) -> None:
        """Print them, at once."""
        if self._columns is None or not self._is_table:
            for item in items:
                print(write_line(shape(item, self._columns)))
        else:
            self._print_table(self._columns, [shape(item, self._columns) for item in items])
        sys.stdout.flush()

    def _print_table(self, columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> None:
        if self._table is None:
            self._table = Table.fit(columns, rows)
            print(self._table.format_head())
        for row in rows:
            print(self._table.format_row(row))


def print_members(item: Mapping[str, Any]) -> None:
    """Print one inference, a line for each member that is known."""
    for name, value in _list_members(item):
        print(f"{make_printable(name):<24}  {value}")


def _list_members(item: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    for name, value in item.items():
        if isinstance(value, Mapping):
            for key, inner in value.items():
                yield f"{name}.{key}", pick({"value": inner}, "value")
        elif isinstance(value, list) and value and isinstance(value[0], Mapping):
            for number, element in enumerate(value):
                known = {key: inner for key, inner in element.items() if inner is not None}
                yield f"{name}[{number}]", make_printable(write_line(known))
        elif value is not None and value != []:
            yield name, pick(item, name)


# Lists of the API other than inferences.

_FILTER: Final = "filter"
_MOST_OF_A_FILTER: Final = 60
"""In columns of the terminal. Lines of JSON have all of it."""


@dataclass(frozen=True, slots=True)
class ListPage:
    """Items as the API shows them, and the cursor of the next page."""

    items: tuple[Mapping[str, Any], ...]
    next: str | None


def print_items(
    items: Sequence[Mapping[str, Any]], columns: Sequence[str], options: argparse.Namespace
) -> None:
    """Print items in columns, or as lines. Ids are never cut, since they are needed whole."""
    if not is_table(options):
        for item in items:
            print(write_line(item))
        return
    table = Table(columns, [_find_width(column, items) for column in columns])
    print(table.format_head(), *map(table.format_row, items), sep="\n")


def _find_width(column: str, items: Sequence[Mapping[str, Any]]) -> int:
    """Return how wide a column is."""
    needed = max(map(measure, [column, *(pick(item, column) for item in items)]))
    return min(needed, _MOST_OF_A_FILTER) if column == _FILTER else needed
