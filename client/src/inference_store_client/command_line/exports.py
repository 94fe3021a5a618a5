"""`istore exports`: lists the exports that the store writes, downloads, stops or restarts one.

It also lists what erasures took of one.
"""

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final
from uuid import UUID

from inference_store_client.decoding import decode
from inference_store_client.errors import SettingsError
from inference_store_client.exporting import read_export
from inference_store_client.reading import fetch, read_list
from inference_store_client.requests import make_path, make_request
from inference_store_client.sync import Export, Transport

from .arguments import IMPATIENT, add_store, open_store, parse_size
from .ending import say
from .export_job import check_folder, download
from .main import Command
from .printing import ListPage, add_format, print_items

_COLUMNS: Final = ("id", "model_id", "format", "state", "rows", "expires_at", "filter")
_ERASED_COLUMNS: Final = ("uid", "inferences", "scope", "erased_at", "erasure")


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
    restarting, erased = add("restart", _restart), add("erased", _list_erased)
    listing.add_argument(
        "--limit", type=parse_size, default=20, help="show at most so many (default: %(default)s)"
    )
    for action in (listing, erased):
        add_format(action)
    for action in (getting, cancelling, restarting, erased):
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
    with open_store(options, IMPATIENT) as transport:
        request = make_request("GET", make_path("exports"), params={"limit": options.limit})
        page = transport.run(fetch(ListPage, request, transport.settings))
    print_items(page.items, _COLUMNS, options)
    if page.next is not None:
        say(f"There are more: --limit shows more than {options.limit}.")


def _list_erased(options: argparse.Namespace) -> None:
    """Show what erasures took of an export, the earliest first: erase it in your copies too."""
    path = make_path("exports", _parse_id(options.id), "erased")
    with open_store(options) as transport:
        erased = transport.iterate(read_list(path, ListPage, transport.settings))
        print_items([*erased], _ERASED_COLUMNS, options)


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


def _restart(options: argparse.Namespace) -> None:
    """Ask the question of an export again, as another export: for one that is stale."""
    with open_store(options, IMPATIENT) as transport:
        again = _read(transport, options.id).restart()
    get = f"`istore exports get {again.id} -o FOLDER` fetches it"
    say(f"Export {again.id}: the store writes it; {get}.")


def _read(transport: Transport, id: str) -> Export:
    request = make_request("GET", make_path("exports", _parse_id(id)))
    build = partial(decode, Export, _transport=transport)
    return transport.run(read_export(request, build, transport.settings))


def _parse_id(text: str) -> str:
    """Return the id of an export."""
    try:
        return str(UUID(text))
    except ValueError:
        message = f"{text} is no id of an export: `istore exports list` shows them"
        raise SettingsError(message) from None


EXPORTS: Final = Command(add_arguments, run)
