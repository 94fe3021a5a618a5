"""Servers that the product does not install: from their lock, in an environment of their own."""

import sys
import sysconfig
from pathlib import Path
from typing import Final

from benchmarks.locked_environment import install_locked

LOCK: Final = Path(__file__).with_name("requirements.lock")


def install_servers() -> Path:
    """Return the folder of the servers' environment, made if it is not there."""
    return install_locked("proxy-servers", LOCK)


def find_servers() -> None:
    """Let this process import them, after all that the product has."""
    folder = str(install_servers())
    packages = sysconfig.get_path("purelib", scheme="venv", vars={"base": folder})
    if packages not in sys.path:
        sys.path.append(packages)


def list_versions() -> dict[str, str]:
    """Return the versions that are locked, by package."""
    lines = [line.split()[0] for line in LOCK.read_text().splitlines() if "==" in line]
    return dict(line.split("==") for line in lines)
