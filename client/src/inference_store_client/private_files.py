"""Files that their owner alone may read."""

import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from inference_store_client.errors import SettingsError

_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO
_MOST_BYTES: Final = 1024 * 1024


def read_private(path: Path) -> bytes | None:
    """Return the content; None: there is no such file.

    Raises SettingsError for one that others may read, or that cannot be read.
    """
    try:
        with path.open("rb") as file:
            if os.name == "posix" and os.fstat(file.fileno()).st_mode & _OTHERS:
                raise SettingsError(f"{path} may be read by others: chmod 600 {path}")
            content = file.read(_MOST_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as wrong:
        raise SettingsError(f"{path} cannot be read: {wrong.strerror}") from wrong
    if len(content) > _MOST_BYTES:
        raise SettingsError(f"{path} has more than {_MOST_BYTES:,} bytes")
    return content


def write_private(path: Path, content: bytes) -> None:
    """Write a file, whole or not at all. Raises SettingsError."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            try:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
                os.replace(file.name, path)
            except BaseException:
                os.unlink(file.name)
                raise
    except OSError as wrong:
        raise SettingsError(f"{path} cannot be written: {wrong.strerror}") from wrong


# Errors of the disk, which name what could not be written.


@contextmanager
def name_target(path: Path) -> Iterator[None]:
    """Give an OSError the path that was asked for: that of a write has none, or a temporary one."""
    try:
        yield
    except OSError as error:
        error.filename = str(path)
        raise
