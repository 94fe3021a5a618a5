"""`inference-store migrate`"""

import argparse
import asyncio
import sys

from inference_store.index.database import DatabaseMissing
from inference_store.index.migration import MigrationBusy, upgrade
from inference_store.index.schema import DatabaseUnavailable, wait_for_schema
from inference_store.platform.settings import LogSettings, PostgresSettings

from .seconds import parse_seconds
from .start import start_service

_BEHIND = 1
_UNAVAILABLE = 3


class _Settings(LogSettings, PostgresSettings):
    """The settings of a migration."""


SETTINGS = _Settings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments: the revision, and how long to wait."""
    parser.add_argument("--revision", default="head", help="revision to go to (default: head)")
    parser.add_argument(
        "--check",
        action="store_true",
        help="change nothing; exit code 0: the schema is what this version needs, or newer;"
        " 1: it is older; 3: Postgres does not answer",
    )
    parser.add_argument(
        "--wait-seconds",
        type=parse_seconds,
        help="longest wait for Postgres, for another migration and for locks (default: 600);"
        " with --check for the schema (default: 0)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Migrate and print the result, or only check."""
    settings = start_service(_Settings, "migrate")
    wait = arguments.wait_seconds
    if arguments.check:
        return _check(settings, wait or 0.0)
    try:
        upgrade(settings, arguments.revision, wait_seconds=600 if wait is None else wait, say=_say)
    except (DatabaseMissing, MigrationBusy) as why:
        print(why, file=sys.stderr)
        return _UNAVAILABLE
    return 0


def _say(sentence: str) -> None:
    print(sentence, flush=True)


def _check(settings: _Settings, wait_seconds: float) -> int:
    try:
        schema = asyncio.run(wait_for_schema(settings, wait_seconds=wait_seconds))
    except DatabaseUnavailable as error:
        print(error, file=sys.stderr)
        return _UNAVAILABLE
    print(schema, file=sys.stderr if schema.behind else sys.stdout)
    return _BEHIND if schema.behind else 0
