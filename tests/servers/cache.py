"""Put a server into the cache folder: once, whole, and by one process at a time."""

import fcntl
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path


def install(folder: Path, build: Callable[[Path], None]) -> Path:
    """Return `folder`, made by `build` in a folder beside it if it is not there yet.

    The finished folder appears by one rename: one that is there is whole, whatever was killed.
    """
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f".{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            _build_beside(folder, build)
    return folder


def _build_beside(folder: Path, build: Callable[[Path], None]) -> None:
    unfinished = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}-"))
    try:
        build(unfinished)
        unfinished.chmod(0o755)
        unfinished.rename(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
