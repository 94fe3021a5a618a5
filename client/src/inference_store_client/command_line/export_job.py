"""`istore export --job`: the store writes the files, and this downloads them into a folder."""

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Final, Self, get_args

from inference_store_client import exporting
from inference_store_client.command_line.arguments import REFUSE, make_question, open_store
from inference_store_client.command_line.ending import say
from inference_store_client.command_line.export_formats import find_ending
from inference_store_client.decoding import decode
from inference_store_client.errors import ConnectionFailed, ExportFailed, SettingsError
from inference_store_client.json_text import write_count
from inference_store_client.streaming import Chunk, Restart
from inference_store_client.sync import Export
from inference_store_client.values.exports import ExportBlobs, ExportFormat, ExportPart

FORMATS: Final[tuple[ExportFormat, ...]] = get_args(ExportFormat)
"""What a job writes."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
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


def refuse_options(options: argparse.Namespace) -> None:
    """Raise SettingsError for what a job alone has, if none was asked for."""
    given = {
        "--expires-in": options.expires_in is not None,
        "--blobs": options.blobs is not None,
        "--confirm": options.confirm,
    }
    if names := [name for name, is_given in given.items() if is_given]:
        raise SettingsError(f"{', '.join(names)}: of a job alone; add --job, or leave it out")


def run(options: argparse.Namespace) -> int:
    """Request the export, wait for it, and download its parts."""
    check_folder(options.output)
    if options.format not in {None, *FORMATS}:
        raise SettingsError(f"--format {options.format}: a job writes {', '.join(FORMATS)}")
    if options.columns is not None:
        raise SettingsError("--columns: a job writes all columns; leave it out, or leave out --job")
    if options.unknown_keys != REFUSE:
        raise SettingsError("--unknown-keys: a job refuses them; leave it out, or leave out --job")
    with open_store(options) as transport:
        request = exporting.make_export_request(
            make_question(options),
            options.format or find_ending(options.output) or FORMATS[0],
            blobs=options.blobs,
            expires_in=options.expires_in,
            confirm=options.confirm,
        )
        build = partial(decode, Export, _transport=transport)
        with _warn_if_lost():
            export = transport.run(exporting.read_export(request, build, transport.settings))
        download(export, options.output, f"Export {export.id}: the store writes it.")
    return 0


def download(export: Export, folder: Path, news: str | None = None) -> None:
    """Say the news of an export, wait until it is written, and download its parts."""
    with _name_remedy(export):
        if news is not None:
            say(news)
        parts, files = export._download(folder)
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


# How far an export is, on standard error.

_PAUSE_SECONDS: Final = 0.2


class Progress:
    """Counts what came, and shows it on a terminal a few times a second."""

    def __init__(self) -> None:
        self._count = self._bytes = 0
        self._begun = time.monotonic()
        self._shown: float | None = None

    def accept(self, item: Chunk | Restart) -> None:
        """Count a piece of the file."""
        if isinstance(item, Restart):
            self._count = self._bytes = 0
            return
        self._count += item.count
        self._bytes += len(item.content)
        now = time.monotonic()
        if sys.stderr.isatty() and now - (self._shown or self._begun) >= _PAUSE_SECONDS:
            self._shown = now
            self._write(f"\r{self.describe()} \x1b[K")

    def describe(self) -> str:
        """Return how much has come, in how long."""
        seconds = time.monotonic() - self._begun
        count = write_count(self._count, "inference")
        return f"{count}, {self._bytes / 1e6:,.1f} MB received, {seconds:.1f} s"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._shown is not None:
            self._write("\r\x1b[K")

    @staticmethod
    def _write(text: str) -> None:
        sys.stderr.write(text)
        sys.stderr.flush()
