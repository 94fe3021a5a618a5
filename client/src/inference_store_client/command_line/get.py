"""`istore get`: shows one inference with all that is known of it, or a blob of it."""

import argparse
import sys
from typing import TextIO

from inference_store_client.command_line.printing import make_printable, shape, write_line
from inference_store_client.commands import Steps
from inference_store_client.errors import SettingsError
from inference_store_client.exchange import exchange
from inference_store_client.reading import fetch_plain
from inference_store_client.requests import ANY, Request, make_path, make_request
from inference_store_client.settings import ClientSettings

from .arguments import IMPATIENT, add_store, open_store
from .ending import say
from .printing import add_format, is_table, print_members


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("model", help="the id of the model")
    parser.add_argument("inference", help="the id of the inference, an alias, or uid:<uuid>")
    parser.add_argument(
        "--part",
        choices=("data", "response"),
        help="write its datum, or the model's response, as it was stored: --part data > frame.jpg",
    )
    add_format(parser)
    add_store(parser)


def run(options: argparse.Namespace) -> int:
    """Show it."""
    path = make_path("models", options.model, "inferences", options.inference)
    with open_store(options, IMPATIENT) as transport:
        if options.part is not None:
            content = transport.run(_read_part(f"{path}/{options.part}", transport.settings))
            write_part(content, options.part, sys.stdout)
            return 0
        request = make_request("GET", path, params={"include": "metadata,predictions"})
        item = transport.run(fetch_plain(request, transport.settings))
    shown = shape(item, None)
    if (count := shown.pop("count", 1)) and count > 1:
        say(f"{count} inferences have this id; this is the newest.")
    if is_table(options):
        print_members(shown)
    else:
        print(write_line(shown))
    return 0


def write_part(content: bytes, part: str, output: TextIO) -> None:
    """Write a part as it was stored. Raises SettingsError for bytes that would steer a terminal."""
    if output.isatty():
        text = content.decode("utf-8", "surrogateescape")
        if make_printable(text, kept="\n\r\t") != text:
            raise SettingsError(f"the {part} is not plain text: write it to a file, > FILE")
    output.buffer.write(content)


def _read_part(path: str, settings: ClientSettings) -> Steps[bytes]:
    response = yield from exchange(Request("GET", path, accept=ANY, may_leave=True), settings)
    return response.content
