"""`istore query`: shows the inferences that match, the newest first."""

import argparse
from collections.abc import Iterator
from typing import Any, Final

from inference_store_client.question import NEWEST_FIRST, Question
from inference_store_client.reading import read_pages
from inference_store_client.sync import Transport

from .arguments import (
    IMPATIENT,
    add_columns,
    add_conditions,
    add_store,
    make_question,
    open_store,
    parse_size,
)
from .ending import say
from .printing import RowPrinter, add_format, choose_columns

_MOST_OF_A_PAGE: Final = 1000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    add_conditions(parser)
    parser.add_argument(
        "--limit", type=parse_size, default=20, help="show at most so many (default: %(default)s)"
    )
    parser.add_argument(
        "--sort", default=NEWEST_FIRST, help="a name; `-` before it: the greatest first"
    )
    add_columns(parser)
    add_format(parser)
    add_store(parser)


def run(options: argparse.Namespace) -> int:
    """Show them."""
    question = make_question(options, choose_columns(options), sort=options.sort)
    with open_store(options, IMPATIENT) as transport:
        items = _Limited(_read(transport, question, options.limit), options.limit)
        RowPrinter(options).print_rows(items)
    if items.has_more:
        say(f"More match: --limit shows more than {options.limit}, `export` writes all to a file.")
    return 0


class _Limited:
    """The first items, and whether there are more."""

    def __init__(self, items: Iterator[Any], limit: int) -> None:
        self._items, self._limit = items, limit
        self.has_more = False

    def __iter__(self) -> Iterator[Any]:
        for number, item in enumerate(self._items):
            if number == self._limit:
                self.has_more = True
                return
            yield item


def _read(transport: Transport, question: Question, limit: int) -> Iterator[Any]:
    """Yield the matches, page by page; one more than the limit, to know of it."""
    steps = read_pages(question, dict, transport.settings, limit=min(limit + 1, _MOST_OF_A_PAGE))
    for page in transport.iterate(steps):
        yield from page.items
