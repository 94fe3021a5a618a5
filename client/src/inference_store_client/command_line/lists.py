"""Lists of the API other than inferences: read page by page, and printed."""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from inference_store_client.command_line.printing import Table, measure, pick, write_line
from inference_store_client.decoding import decode
from inference_store_client.reading import fetch_plain
from inference_store_client.requests import make_request
from inference_store_client.sync import Transport

from .printing import is_table

_FILTER: Final = "filter"
_MOST_OF_A_FILTER: Final = 60
"""In columns of the terminal. Lines of JSON have all of it."""


@dataclass(frozen=True, slots=True)
class ListPage:
    """Items as the API shows them, and the cursor of the next page."""

    items: tuple[Mapping[str, Any], ...]
    next: str | None


def read_list_page(transport: Transport, path: str, params: Mapping[str, str]) -> ListPage:
    """Read one page of a list."""
    request = make_request("GET", path, params=params)
    return decode(ListPage, transport.run(fetch_plain(request, transport.settings)))


def read_items(
    transport: Transport, path: str, params: Mapping[str, str]
) -> Iterator[Mapping[str, Any]]:
    """Yield the items of a list, page by page."""
    cursor: Mapping[str, str] = {}
    while True:
        page = read_list_page(transport, path, {**params, **cursor})
        yield from page.items
        if page.next is None:
            return
        cursor = {"cursor": page.next}


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
