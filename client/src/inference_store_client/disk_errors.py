"""Errors of the disk, which name what could not be written."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def name_target(path: Path) -> Iterator[None]:
    """Give an OSError the path that was asked for: that of a write has none, or a temporary one."""
    try:
        yield
    except OSError as error:
        error.filename = str(path)
        raise
