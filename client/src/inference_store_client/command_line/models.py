"""`istore models`: lists the models that you may read."""

import argparse
from typing import Final

from inference_store_client.requests import make_path

from .arguments import IMPATIENT, add_store, open_store
from .lists import print_items, read_items
from .printing import add_format

_COLUMNS: Final = ("model_id", "project_id", "name", "task_type")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("--project", metavar="ID", help="those of this project alone")
    add_format(parser)
    add_store(parser)


def run(options: argparse.Namespace) -> int:
    """Show them, in order of id."""
    params = {} if options.project is None else {"project_id": options.project}
    with open_store(options, IMPATIENT) as transport:
        items = [*read_items(transport, make_path("models"), params)]
    print_items(items, _COLUMNS, options)
    return 0
