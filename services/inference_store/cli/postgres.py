"""What a command says if Postgres is unavailable."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.exc import DBAPIError

from .closed_pipe import raise_if_reader_is_gone


@contextmanager
def require_postgres() -> Iterator[None]:
    """Exit with a sentence if Postgres is unavailable in the body."""
    try:
        yield
    except (DBAPIError, OSError) as error:
        raise_if_reader_is_gone(error)
        sys.exit(
            f"Postgres is unavailable, or not migrated (inference-store migrate): {error}"[:500]
        )
