"""Servers that the product does not install: from their lock, into a folder of their own."""

import subprocess
import sys
from hashlib import sha256
from pathlib import Path
from typing import Final

from benchmarks.query.dataset import cache

LOCK: Final = Path(__file__).with_name("requirements.lock")


def install_servers() -> Path:
    """Return the folder of the servers' packages, installed if they are not there."""
    folder = cache() / f"proxy-servers-{sha256(LOCK.read_bytes()).hexdigest()[:12]}"
    ready = folder / "ready"
    if not ready.exists():
        print(f"installing servers into {folder} …", flush=True)
        uv = str(Path(sys.executable).with_name("uv"))
        target = ("--quiet", "--require-hashes", "--target", str(folder))
        subprocess.run([uv, "pip", "install", *target, "-r", str(LOCK)], check=True)
        ready.touch()
    return folder


def find_servers() -> None:
    """Let this process import them, after all that the product has."""
    folder = str(install_servers())
    if folder not in sys.path:
        sys.path.append(folder)


def list_versions() -> dict[str, str]:
    """Return the versions that are locked, by package."""
    lines = [line.split()[0] for line in LOCK.read_text().splitlines() if "==" in line]
    return dict(line.split("==") for line in lines)
