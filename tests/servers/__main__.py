"""`python -m tests.servers`: install every real server before the tests need it."""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from .kafka import find_kafka
from .minio import find_minio
from .postgres import find_postgres
from .versions import MissingServer, servers_are_required

FINDERS: Mapping[str, Callable[[], Path]] = {
    "postgres": find_postgres,
    "kafka": find_kafka,
    "minio": find_minio,
}


def print_locations(finders: Mapping[str, Callable[[], Path]]) -> int:
    """Print where each server is. Return 1 if one is missing and all are required, else 0."""
    missing = 0
    for name, find in finders.items():
        try:
            print(f"{name}: {find()}", flush=True)
        except MissingServer as exc:
            missing += 1
            print(f"{name}: not here: {exc}", flush=True)
    return 1 if missing and servers_are_required() else 0


if __name__ == "__main__":
    sys.exit(print_locations(FINDERS))
