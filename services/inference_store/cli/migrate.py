"""`inference-store migrate`"""

import argparse

from inference_store.store.migration import upgrade
from inference_store.store.settings import LogSettings, PostgresSettings

from .start import started


class _Settings(LogSettings, PostgresSettings):
    """What a migration needs."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Where to go."""
    parser.add_argument("--revision", default="head", help="revision to go to (default: head)")


def run(arguments: argparse.Namespace) -> int:
    """Migrate and say so."""
    settings = started(_Settings, "migrate")
    upgrade(settings.postgres_dsn.get_secret_value(), arguments.revision)
    print(f"The database is at revision {arguments.revision}.")
    return 0
