"""Debian's torch, linked into an environment: PyPI's brings gigabytes for graphics cards."""

import sys
from pathlib import Path

from tests.servers.versions import MissingServer

_PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
_OF_DEBIAN = Path("/usr/lib/python3/dist-packages")


def find_torch(name: str = "torch") -> Path:
    """The package's folder, `torch` or `torchvision`. Raises MissingServer."""
    found = _OF_DEBIAN / name
    if not list(found.glob(f"_C.cpython-{_PYTHON.replace('.', '')}-*.so")):
        raise MissingServer(f"{name} for Python {_PYTHON} is not here (Debian: python3-{name})")
    return found


def link_torch(packages: Path, *names: str) -> None:
    """Link it, or the packages that are named, into an environment's packages."""
    for name in names or ("torch",):
        for each in (find_torch(name), *_OF_DEBIAN.glob(f"{name}-*.egg-info")):
            (packages / each.name).symlink_to(each)
