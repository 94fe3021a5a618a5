"""Files that their owner alone may read, and files and folders that appear as a whole."""

import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import IO, Final

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
        with closing(NewFile(path)) as file:
            file.write(content)
            file.publish()
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


# A file that appears under its name when it is whole.


class NewFile:
    """Writes beside the file, and takes its name when it is published; closing it removes the rest.

    Only its owner may read it: it is a copy of what the store protects. `called`: its path in
    errors, if another than what is written.
    """

    def __init__(self, path: Path, *, called: Path | None = None) -> None:
        self._path, self._called = path, called or path
        self._file: IO[bytes] = self._open()

    def write(self, content: bytes) -> None:
        """Add bytes."""
        with name_target(self._called):
            self._file.write(content)

    def begin_again(self) -> None:
        """Drop what was written."""
        with name_target(self._called):
            self._file.seek(0)
            self._file.truncate()

    def convert(self, write: Callable[[IO[bytes], str], None]) -> None:
        """Replace the content by what a function makes of it; it is given the path to write."""
        with name_target(self._called):
            before = self._file
            self._file = self._open()
            try:
                before.seek(0)
                write(before, self._file.name)
            finally:
                self._remove(before)

    def _open(self) -> IO[bytes]:
        prefix = f".{self._path.name[:100]}."
        with name_target(self._called):
            return tempfile.NamedTemporaryFile(
                dir=self._path.parent, prefix=prefix, suffix=".part", delete=False
            )

    def publish(self) -> None:
        """Give the file its name."""
        with name_target(self._called):
            # The bytes are on disk before the name is: after a crash there is no short file.
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()  # some systems rename no file that is open
            os.replace(self._file.name, self._path)
            _sync_folder(self._path.parent)

    def close(self) -> None:
        """Remove what was not published."""
        self._remove(self._file)

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


# A folder that is there as a whole, or not at all.


class NewFolder:
    """Fills a temporary folder beside the target, and renames it at the end. Only you may read it.

    Closing it without `publish` removes it. A process that is killed leaves the temporary folder,
    which is named like a hidden file.
    """

    def __init__(self, target: Path) -> None:
        _refuse_existing(target)
        self.target = target
        target.parent.mkdir(parents=True, exist_ok=True)
        self.path = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name[:100]}-"))

    def publish(self) -> None:
        """Give the folder its name. Raises SettingsError if that exists by now."""
        _refuse_existing(self.target)
        # Of a folder that somebody has made since, rename replaces an empty one alone.
        self.path.rename(self.target)

    def close(self) -> None:
        """Remove the temporary folder, if it was not published."""
        shutil.rmtree(self.path, ignore_errors=True)


def _refuse_existing(target: Path) -> None:
    if target.exists() or target.is_symlink():
        raise SettingsError(f"{target} exists: remove it, or name another folder")
