"""`inference-store distribute`"""

import argparse
import asyncio
import sys

from inference_store.index.distribution import CannotDistribute, distribute
from inference_store.platform.settings import LogSettings, PostgresSettings

from .start import start_service

_SHARDS = 32


class _Settings(LogSettings, PostgresSettings):
    """The settings of the command."""


SETTINGS = _Settings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the argument for the number of shards."""
    parser.add_argument(
        "--shards",
        type=_parse_shards,
        default=_SHARDS,
        help=f"shards of each distributed table; a model lives on one (default: {_SHARDS})",
    )


def _parse_shards(text: str) -> int:
    if not text.isdigit() or not 1 <= int(text) <= 1024:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number from 1 to 1024")
    return int(text)


def run(arguments: argparse.Namespace) -> int:
    """Distribute the tables, and print it; return 1, with the reason, if that is not possible."""
    settings = start_service(_Settings, "distribute")
    try:
        asyncio.run(distribute(settings, shards=arguments.shards, say=_say))
    except CannotDistribute as cannot:
        print(cannot, file=sys.stderr)
        return 1
    return 0


def _say(sentence: str) -> None:
    print(sentence, flush=True)
