"""Prints results: a table on a terminal, lines of JSON in a pipe."""

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from inference_store_client.json_text import Json, write_json
from inference_store_client.tables import (
    INFERENCE_COLUMNS,
    Table,
    find_path,
    make_printable,
    measure,
    pick,
)
from inference_store_client.values.answers import Listing
from inference_store_client.values.inference import read_value

# Inferences as the rows of a table, and as lines of JSON with exact numbers.

_METADATA: Final = "metadata"
_TEXTS: Final = frozenset({"timestamp", "datetime", "date"})


def shape(item: Mapping[str, Any], columns: Sequence[str] | None) -> dict[str, Any]:
    """Return an inference of the API with its metadata by key, and with these columns alone."""
    if columns is None:
        chosen = {name: value for name, value in item.items() if name != "cursor"}
    else:
        names = dict.fromkeys(column.partition(".")[0] for column in columns)
        chosen = {name: item.get(name) for name in names}
    if isinstance(chosen.get(_METADATA), list):
        metadata = {
            entry["key"]: _read_entry(entry["type"], entry["value"]) for entry in chosen[_METADATA]
        }
        is_whole = columns is None or _METADATA in columns
        chosen[_METADATA] = metadata if is_whole else _narrow(metadata, columns or ())
    return chosen


def _narrow(metadata: Mapping[str, Json], columns: Iterable[str]) -> dict[str, Json]:
    """Return the metadata that columns name: the API sends all of a key into which a path leads."""
    narrowed: dict[str, Json] = {}
    for column in columns:
        field, _, name = column.partition(".")
        path = find_path(metadata, name) if field == _METADATA else ()
        if path:
            value, target = metadata, narrowed
            for member in path[:-1]:
                value, target = value[member], target.setdefault(member, {})
            target[path[-1]] = value[path[-1]]
    return narrowed


def _read_entry(type_name: str, text: str | None) -> Json:
    """Return a value of metadata in its type, a time as the text that came."""
    return text if type_name.strip().lower() in _TEXTS else read_value(type_name, text)


def write_line(value: Json) -> str:
    """Return a value as a line of JSON for standard output, with exact numbers."""
    line = write_json(value, ensure_ascii=False)
    try:
        line.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:  # a lone surrogate, or a terminal that is not of UTF-8
        return write_json(value)
    return line


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
        return INFERENCE_COLUMNS
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


ListPage = Listing[Mapping[str, Any]]
"""Items as the API shows them."""


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
