"""A file that appears under its name when it is whole."""

import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from inference_store_client.private_files import name_target
from inference_store_client.streaming import RESTART, Chunk, Restart


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
        with name_target(self._path):
            if isinstance(item, Chunk):
                self._file.write(item.content)
            elif item is RESTART:
                self._file.seek(0)
                self._file.truncate()

    def convert(self, write: Callable[[IO[bytes], str], None]) -> None:
        """Replace the content by what a function makes of it; it is given the path to write."""
        with name_target(self._path):
            before = self._file
            self._file = self._open()
            try:
                before.seek(0)
                write(before, self._file.name)
            finally:
                self._remove(before)

    def _open(self) -> IO[bytes]:
        prefix = f".{self._path.name[:100]}."
        with name_target(self._path):
            return tempfile.NamedTemporaryFile(
                dir=self._path.parent, prefix=prefix, suffix=".part", delete=False
            )

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if error is None:
                with name_target(self._path):
                    self._publish()
        finally:
            self._remove(self._file)

    def _publish(self) -> None:
        # The bytes are on disk before the name is: after a crash there is no short file.
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()  # some systems rename no file that is open
        os.replace(self._file.name, self._path)
        _sync_folder(self._path.parent)

    @staticmethod
    def _remove(file: IO[bytes]) -> None:
        with suppress(OSError):  # of bytes that a full disk does not take, and nobody needs
            file.close()
        Path(file.name).unlink(missing_ok=True)


def _sync_folder(path: Path) -> None:
    if os.name != "posix":  # others cannot open a folder
        return
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
