"""Install a server in the cache folder: once, completely, and by one process at a time."""

import fcntl
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path


def install(folder: Path, build: Callable[[Path], None]) -> Path:
    """Return `folder`; if it does not exist, let `build` fill a folder beside it first.

    The finished folder is renamed in one step, so an existing one is always complete.
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
