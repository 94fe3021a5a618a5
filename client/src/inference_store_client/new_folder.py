"""A folder that is there as a whole, or not at all."""

import shutil
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

from .errors import SettingsError


class NewFolder:
    """Fills a temporary folder beside the target, and renames it at the end. Only you may read it.

    A block that is left without `publish` removes it. A process that is killed leaves the
    temporary folder, which is named like a hidden file.
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

    def remove(self) -> None:
        """Remove the temporary folder, if it was not published."""
        shutil.rmtree(self.path, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.remove()


def _refuse_existing(target: Path) -> None:
    if target.exists() or target.is_symlink():
        raise SettingsError(f"{target} exists: remove it, or name another folder")
