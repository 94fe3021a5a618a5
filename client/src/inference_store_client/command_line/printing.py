"""Prints results: a table on a terminal, lines of JSON in a pipe."""

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from .rows import DEFAULT_COLUMNS, pick, shape, write_line
from .table import Table
from .text import make_printable

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
