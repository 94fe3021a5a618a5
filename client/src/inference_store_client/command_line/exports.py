"""`istore exports`: lists the exports that the store writes, downloads, stops or restarts one.

It also lists what erasures took of one. `istore export --job` requests one, and downloads it.
"""

import argparse
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, get_args
from uuid import UUID

from inference_store_client import exporting
from inference_store_client.errors import ConnectionFailed, ExportFailed, SettingsError
from inference_store_client.json_text import write_count
from inference_store_client.reading import fetch, read_list
from inference_store_client.requests import make_path, make_request
from inference_store_client.streaming import collect
from inference_store_client.sync import Export
from inference_store_client.transport import run
from inference_store_client.values.exports import ExportBlobs, ExportFormat, ExportPart

from .arguments import IMPATIENT, REFUSE, add_store, open_store, parse_size
from .ending import say
from .main import Command
from .printing import ListPage, add_format, print_items

JOB_FORMATS: Final[tuple[ExportFormat, ...]] = get_args(ExportFormat)
"""What a job writes."""


def add_job_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of an export that the store carries out."""
    group = parser.add_argument_group("a job of the store")
    group.add_argument(
        "--job", action="store_true", help="let the store write files; -o is then a new folder"
    )
    group.add_argument(
        "--expires-in", metavar="DURATION", help="when the store deletes its files: P7D, PT12H"
    )
    group.add_argument(
        "--blobs",
        choices=get_args(ExportBlobs),
        help="beside each inference nothing, presigned links, or the bytes of its input and"
        " response; default: none, and copy for webdataset",
    )
    group.add_argument("--confirm", action="store_true", help="also if very many match")


def refuse_job_options(options: argparse.Namespace) -> None:
    """Raise SettingsError for what a job alone has, if none was asked for."""
    given = {
        "--expires-in": options.expires_in is not None,
        "--blobs": options.blobs is not None,
        "--confirm": options.confirm,
    }
    if names := [name for name, is_given in given.items() if is_given]:
        raise SettingsError(f"{', '.join(names)}: of a job alone; add --job, or leave it out")


def run_job(options: argparse.Namespace, format: Any) -> int:
    """Request the export, wait for it, and download its parts."""
    check_folder(options.output)
    if options.format not in {None, *JOB_FORMATS}:
        raise SettingsError(f"--format {options.format}: a job writes {', '.join(JOB_FORMATS)}")
    if options.columns is not None:
        raise SettingsError("--columns: a job writes all columns; leave it out, or leave out --job")
    if options.unknown_keys != REFUSE:
        raise SettingsError("--unknown-keys: a job refuses them; leave it out, or leave out --job")
    with open_store(options) as store:
        inferences = store.model(options.model).inferences(
            options.filter, since=options.since, until=options.until
        )
        with _warn_if_lost():
            export = inferences.export(
                format or JOB_FORMATS[0],
                blobs=options.blobs,
                expires_in=options.expires_in,
                confirm=options.confirm,
            )
        download(export, options.output, f"Export {export.id}: the store writes it.")
    return 0


def download(export: Export, folder: Path, news: str | None = None) -> None:
    """Say the news of an export, wait until it is written, and download its parts."""
    with _name_remedy(export):
        if news is not None:
            say(news)
        parts, files = run(exporting.download(export._transport, export.id, folder))
    say(_describe(parts, files, folder))


def _describe(parts: Sequence[ExportPart], files: Sequence[Path], folder: Path) -> str:
    """Return what was downloaded, and in a second line what is not in it."""
    rows, gone, missing = (
        sum(getattr(part, name) or 0 for part in parts) for name in ("rows", "gone", "missing")
    )
    lines = [f"{write_count(rows, 'inference')} in {write_count(len(files), 'file')}: {folder}"]
    left_out = [f"{write_count(gone, 'inference')} (erased)"] if gone else []
    if missing:
        left_out.append(
            f"{write_count(missing, 'blob')} (deleted, not in the bucket, or too large)"
        )
    if left_out:
        lines.append(f"left out: {', '.join(left_out)}")
    elif not files:
        lines.append("nothing matches: the folder is empty")
    return "\n".join(lines)


def check_folder(path: Path) -> None:
    """Raise SettingsError if a folder cannot be made: before anything is asked."""
    if path.exists() or path.is_symlink():
        raise SettingsError(f"{path} exists: give a new folder")
    if not path.parent.is_dir():
        raise SettingsError(f"{path.parent} is no folder: make it first")


@contextmanager
def _warn_if_lost() -> Iterator[None]:
    """Say of a request without an answer that it may have been carried out."""
    try:
        yield
    except (ConnectionFailed, KeyboardInterrupt, SystemExit) as error:
        error.add_note("If the request reached the store, `istore exports list` shows the export.")
        raise


@contextmanager
def _name_remedy(export: Export) -> Iterator[None]:
    """Say of an error or a signal that the store goes on or has what it wrote, and the commands for
    the export."""
    try:
        yield
    except ExportFailed:
        raise
    except BaseException as error:
        error.add_note(_describe_remedy(export))
        raise


def _describe_remedy(export: Export) -> str:
    get = f"`istore exports get {export.id} -o FOLDER` fetches it"
    if export.state == "done":
        return f"Export {export.id} stays in the store until it expires: {get}."
    cancel = f"`istore exports cancel {export.id}` stops it"
    return f"The store goes on with export {export.id}: {get}, {cancel}."


# The exports of a store.

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


def run_action(options: argparse.Namespace) -> int:
    """Do it."""
    options.act(options)
    return 0


def _list(options: argparse.Namespace) -> None:
    """Show the exports that you may see, the newest first."""
    with open_store(options, IMPATIENT) as store:
        request = make_request("GET", make_path("exports"), params={"limit": options.limit})
        page = run(fetch(store._transport, ListPage, request))
    print_items(page.items, _COLUMNS, options)
    if page.next is not None:
        say(f"There are more: --limit shows more than {options.limit}.")


def _list_erased(options: argparse.Namespace) -> None:
    """Show what erasures took of an export, the earliest first: erase it in your copies too."""
    path = make_path("exports", _parse_id(options.id), "erased")
    with open_store(options) as store:
        erased = run(collect(read_list(store._transport, path, ListPage)))
    print_items(erased, _ERASED_COLUMNS, options)


def _get(options: argparse.Namespace) -> None:
    """Wait until an export is written, and download it into a new folder."""
    check_folder(options.output)
    with open_store(options) as store:
        download(store.export(_parse_id(options.id)), options.output)


def _cancel(options: argparse.Namespace) -> None:
    """Stop an export, and let the store delete its parts."""
    with open_store(options, IMPATIENT) as store:
        export = store.export(_parse_id(options.id)).cancel()
    say(f"Export {export.id} is {export.state}: the store deletes its parts.")


def _restart(options: argparse.Namespace) -> None:
    """Ask the question of an export again, as another export: for one that is stale."""
    with open_store(options, IMPATIENT) as store:
        again = store.export(_parse_id(options.id)).restart()
    get = f"`istore exports get {again.id} -o FOLDER` fetches it"
    say(f"Export {again.id}: the store writes it; {get}.")


def _parse_id(text: str) -> str:
    """Return the id of an export."""
    try:
        return str(UUID(text))
    except ValueError:
        message = f"{text} is no id of an export: `istore exports list` shows them"
        raise SettingsError(message) from None


EXPORTS: Final = Command(add_arguments, run_action)
