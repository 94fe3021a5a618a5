"""Environments of what the product does not install, from hashed lock files of their own."""

import subprocess
import sys
from hashlib import sha256
from pathlib import Path

from benchmarks.query.dataset import cache


def install_locked(name: str, lock: Path) -> Path:
    """Return the folder of a virtual environment with the packages of a lock file, made if it is
    not there."""
    folder = cache() / f"{name}-{sha256(lock.read_bytes()).hexdigest()[:12]}"
    ready = folder / "ready"
    if not ready.exists():
        print(f"installing {name} into {folder} …", flush=True)
        uv = str(Path(sys.executable).with_name("uv"))
        python = str(folder / "bin" / "python")
        _run(uv, "venv", "--quiet", "--clear", "--python", sys.executable, str(folder))
        install = (uv, "pip", "install", "--quiet", "--require-hashes", "--python", python)
        _run(*install, "-r", str(lock))
        ready.touch()
    return folder


def _run(*command: str) -> None:
    subprocess.run(command, check=True)
