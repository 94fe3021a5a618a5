"""`istore exports`: lists the exports that the store writes, downloads one, or stops one."""

import argparse
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from inference_store_client.decoding import decode
from inference_store_client.exporting import read_export
from inference_store_client.reading import fetch_plain
from inference_store_client.requests import make_path, make_request
from inference_store_client.sync.export import Export
from inference_store_client.sync.transport import Transport

from .arguments import IMPATIENT, add_store, open_store, parse_size
from .ending import say
from .export_job import check_folder, download
from .printing import add_format, is_table
from .rows import pick, write_line
from .table import Table
from .text import measure

_COLUMNS: Final = ("id", "model_id", "state", "rows", "expires_at")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what can be done with exports."""
    actions = parser.add_subparsers(required=True, metavar="action")

    def add(name: str, act: Callable[[argparse.Namespace], None]) -> argparse.ArgumentParser:
        sentence = str(act.__doc__)
        action = actions.add_parser(name, help=sentence, description=sentence)
        action.set_defaults(act=act)
        add_store(action)
        return action

    listing, getting, cancelling = add("list", _list), add("get", _get), add("cancel", _cancel)
    listing.add_argument(
        "--limit", type=parse_size, default=20, help="show at most so many (default: %(default)s)"
    )
    add_format(listing)
    for action in (getting, cancelling):
        action.add_argument("id", help="the id of the export")
    getting.add_argument(
        "-o", "--output", type=Path, required=True, metavar="FOLDER", help="the folder to make"
    )


def run(options: argparse.Namespace) -> int:
    """Do it."""
    options.act(options)
    return 0


def _list(options: argparse.Namespace) -> None:
    """Show the exports that you may see, the newest first."""
    request = make_request("GET", make_path("exports"), params={"limit": str(options.limit)})
    with open_store(options, IMPATIENT) as transport:
        page: Any = transport.run(fetch_plain(request, transport.settings))
    if is_table(options):
        _print_table(page["items"])
    else:
        for item in page["items"]:
            print(write_line(item))
    if page["next"] is not None:
        say(f"There are more: --limit shows more than {options.limit}.")


def _print_table(items: Sequence[Mapping[str, Any]]) -> None:
    """Print exports in columns that are never cut: `get` needs a whole id."""
    cells = [[column, *(pick(item, column) for item in items)] for column in _COLUMNS]
    table = Table(_COLUMNS, [max(map(measure, column)) for column in cells])
    print(table.format_head(), *map(table.format_row, items), sep="\n")


def _get(options: argparse.Namespace) -> None:
    """Wait until an export is written, and download it into a new folder."""
    check_folder(options.output)
    with open_store(options) as transport:
        download(_read(transport, options.id), options.output)


def _cancel(options: argparse.Namespace) -> None:
    """Stop an export, and let the store delete its parts."""
    with open_store(options, IMPATIENT) as transport:
        export = _read(transport, options.id).cancel()
    say(f"Export {export.id} is {export.state}: the store deletes its parts.")


def _read(transport: Transport, id: str) -> Export:
    request = make_request("GET", make_path("exports", id))
    build = partial(decode, Export, _transport=transport)
    return transport.run(read_export(request, build, transport.settings))
