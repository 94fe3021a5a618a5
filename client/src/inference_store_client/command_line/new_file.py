"""A file that appears under its name when it is whole."""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from inference_store_client.chunks import RESTART, Chunk, Restart


class NewFile:
    """Writes beside the file, and takes its name at the end of the block, if there is no error.

    Only its owner may read it: it is a copy of what the store protects.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> Self:
        self._file: IO[bytes] = self._open()
        return self

    def accept(self, item: Chunk | Restart) -> None:
        """Add bytes, or begin again."""
        if isinstance(item, Chunk):
            self._file.write(item.content)
        elif item is RESTART:
            self._file.seek(0)
            self._file.truncate()

    def convert(self, write: Callable[[IO[bytes], str], None]) -> None:
        """Replace the content by what a function makes of it; it is given the path to write."""
        before = self._file
        self._file = self._open()
        try:
            before.seek(0)
            write(before, self._file.name)
        finally:
            before.close()
            os.unlink(before.name)

    def _open(self) -> IO[bytes]:
        prefix = f".{self._path.name[:100]}."
        return tempfile.NamedTemporaryFile(
            dir=self._path.parent, prefix=prefix, suffix=".part", delete=False
        )

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # The bytes are on disk before the name is: after a crash there is no short file.
        try:
            with self._file:
                if error is None:
                    self._file.flush()
                    os.fsync(self._file.fileno())
            if error is None:
                os.replace(self._file.name, self._path)
                _sync_folder(self._path.parent)
        finally:
            Path(self._file.name).unlink(missing_ok=True)


def _sync_folder(path: Path) -> None:
    if os.name != "posix":  # others cannot open a folder
        return
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
